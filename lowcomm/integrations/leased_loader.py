"""A data loader of another project, with its items chosen by the node's leases.

Must NOT draw an item before the method has joined the run: the daemon assigns data then.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from lowcomm.training.attach import Peer
from lowcomm.training.item_batches import Sampler
from protocols.types import ConfigError

MAP_STYLE = ("__len__", "__getitem__")
"""Methods of a dataset with numbered items."""


class LeasedBatches:
    """Numbers of items in batches of `rows`, until the run is finished: a `batch_sampler` for
    torch's DataLoader.

    An inner step takes as many batches as make up this rank's share of `run.data.batch`. A second
    iteration goes on where the first one ended.
    """

    def __init__(self, steps: Iterable[list[int]], *, rows: int) -> None:
        """`steps`: the numbers of this rank's items for each inner step, a lowcomm.Sampler."""
        self._steps, self._rows = steps, rows

    def __iter__(self) -> Iterator[list[int]]:
        for share in self._steps:
            for begin in range(0, len(share), self._rows):
                yield share[begin : begin + self._rows]


class RemadeStream:
    """A stream that each iteration reads from its beginning, of a dataset that would go on where
    its last iteration has ended: it is made anew for each."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        """`make`: returns the dataset, of which no item has been read."""
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        yield from self._make()


class Parts:
    """A collate function that makes of a rank's items of one inner step a list of batches of `rows`
    items each."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any], *, rows: int) -> None:
        """`collate_fn`: joins the items of one batch."""
        self._collate_fn, self._rows = collate_fn, rows

    def __call__(self, items: list[Any]) -> list[Any]:
        starts = range(0, len(items), self._rows)
        return [self._collate_fn(items[start : start + self._rows]) for start in starts]


def leased_loader(
    peer: Peer, loader: DataLoader[Any], *, rows: int | None, accumulated: int = 1
) -> DataLoader[Any]:
    """Return a loader like `loader`, over the same dataset, with batches of `rows` items that the
    node's leases choose. Its order, shuffling and length do not matter.

    `rows`: items in one batch of one rank; `accumulated`: batches in one optimizer step. Raises
    ConfigError if they do not make up `run.data.batch`, or if the dataset has no numbered items.
    """
    dataset: Any = loader.dataset
    with peer.fitting():
        if not all(hasattr(dataset, each) for each in MAP_STYLE):
            raise ConfigError(
                f"the training data is a {type(dataset).__name__}, which has no numbered items to "
                "lease: use a dataset with __len__ and __getitem__"
            )
        if rows is None:
            raise ConfigError(
                "the training data's loader has a batch_sampler of its own, but the leases choose "
                "the batches: give it a batch_size instead"
            )
        check_batch(peer, rows=rows, accumulated=accumulated, shares=peer.world_size)
    ahead = loader.num_workers * (loader.prefetch_factor or 0)
    steps = Sampler(peer, dataset, ahead=-(-ahead // accumulated) + 1)
    batches = LeasedBatches(steps, rows=rows)
    # A generator of its own: each iteration over a DataLoader draws a seed, also one that begins
    # after the ranks have started again, and the program's random numbers must not depend on that.
    generator = torch.Generator().manual_seed(peer.run.seed)
    return DataLoader(
        dataset,
        batch_sampler=batches,
        generator=generator,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def check_batch(peer: Peer, *, rows: int, accumulated: int, shares: int) -> None:
    """Raise ConfigError if `accumulated` batches of `rows` items, on so many ranks with data of
    their own, do not make up `run.data.batch`."""
    wanted = peer.run.data.batch
    if rows * accumulated * shares != wanted:
        raise ConfigError(
            f"an optimizer step has {rows * accumulated * shares} items (batches of {rows}, "
            f"{accumulated} accumulated, {shares} ranks), but run.data.batch is {wanted}: make "
            "them equal"
        )
