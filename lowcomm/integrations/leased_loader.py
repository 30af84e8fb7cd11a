"""A data loader of another project, with its items chosen by the node's leases.

Must NOT draw an item before the method has joined the run: the daemon assigns data then.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from lowcomm.config.schema import RunConfig
from protocols.types import ConfigError

MAP_STYLE = ("__len__", "__getitem__")
"""Methods of a dataset with numbered items."""


class LeasingPeer(Protocol):
    """The attributes of `lowcomm.training.attach.Peer` that are needed here."""

    @property
    def run(self) -> RunConfig: ...
    @property
    def world_size(self) -> int: ...
    def batches(self, dataset: Any, /) -> Iterator[Any]: ...
    def fitting(self) -> AbstractContextManager[None]: ...


class LeasedBatches:
    """Numbers of items in batches of `rows`, until the run is finished: a `batch_sampler` for
    torch's DataLoader.

    An inner step takes as many batches as make up this rank's share of `run.data.batch`. A second
    iteration goes on where the first one ended.
    """

    def __init__(self, peer: LeasingPeer, *, items: int, rows: int) -> None:
        """`items`: the length of the dataset."""
        self._peer, self._items, self._rows = peer, items, rows

    def __iter__(self) -> Iterator[list[int]]:
        for numbers in self._peer.batches(range(self._items)):
            share: list[int] = numbers.tolist()
            for begin in range(0, len(share), self._rows):
                yield share[begin : begin + self._rows]


def leased_loader(
    peer: LeasingPeer, loader: DataLoader[Any], *, rows: int | None, accumulated: int = 1
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
        wanted = peer.run.data.batch
        if rows * accumulated * peer.world_size != wanted:
            raise ConfigError(
                f"an optimizer step has {rows * accumulated * peer.world_size} items (batches of "
                f"{rows}, {accumulated} accumulated, {peer.world_size} ranks), but run.data.batch "
                f"is {wanted}: make them equal"
            )
    batches = LeasedBatches(peer, items=len(dataset), rows=rows)
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
