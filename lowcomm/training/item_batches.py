"""Batches of a program's own dataset: items of leased samples, loaded here or by other processes.

Which samples a batch has is decided where it is drawn, in the rank's own process; loading processes
get the numbers of items only. Must NOT know which node holds a sample (lowcomm/data/lease.py), nor
touch a parameter.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch.utils.data as torch_data

from lowcomm.data.batches import Batches
from lowcomm.data.lease import Share
from protocols.types import ConfigError

if TYPE_CHECKING:
    from lowcomm.training.attach import Peer

Collate = Callable[[list[Any]], Any]
"""Joins the items of a batch."""
AHEAD = 32
"""Batches that a DataLoader draws ahead at most, unless it is said."""
SKIPPED_MIN = 1024
"""Fewer items than these are read rather than skipped."""
PREFETCH = 2
"""Batches that each process loads ahead, as in torch."""


class Dataset(Protocol):
    """A map-style dataset, as in torch: items are numbered from 0."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class ItemOrder:
    """The order in which a run visits the items of a map-style dataset, pass after pass."""

    def __init__(self, items: int, *, seed: int) -> None:
        """Raises ConfigError if there are no items."""
        if items == 0:
            raise ConfigError("the dataset has no items")
        # Items are drawn like the windows of a text with windows of one byte, one for each item.
        # The text is a broadcast view, which stores nothing.
        self._windows = Batches(np.broadcast_to(np.uint8(0), items + 1), window=1, seed=seed)

    def items(self, samples: Sequence[int]) -> list[int]:
        """The items of these samples."""
        return [int(item) for item in self._windows.windows(samples)]


class StreamItems:
    """The items of an iterable dataset by their numbers: sample n is item n of the stream, which
    begins anew when it ends.

    Each node and each loading process reads the stream by itself, and passes over the items that it
    does not need: with the dataset's `skip(n)`, if it has one, when many lie between. Samples are
    leased in ranges, so a range is a unit of work, and a node that takes one over goes on within
    it.
    """

    def __init__(self, dataset: Iterable[Any]) -> None:
        """Raises ConfigError if the dataset can be iterated over only once."""
        if iter(dataset) is dataset:
            raise ConfigError(
                f"the dataset is a {type(dataset).__name__}, which can be read only once: pass an "
                "object with an __iter__ that begins anew, for example a torch IterableDataset"
            )
        self._dataset = dataset
        self._stream: Iterator[Any] | None = None
        self._position = 0
        """Number of the item that the stream yields next."""
        self._length: int | None = None
        """Number of items in the stream, once its end has been seen."""

    def __getstate__(self) -> dict[str, Any]:
        """A loading process reads a stream of its own."""
        return {**self.__dict__, "_stream": None, "_position": 0}

    def __getitem__(self, sample: int) -> Any:
        """The item of this sample. Raises ConfigError if the stream is empty, or ends earlier than
        before."""
        while True:
            item = sample if self._length is None else sample % self._length
            self._seek(item)
            assert self._stream is not None
            try:
                while self._position < item:
                    self._read_next()
                return self._read_next()
            except StopIteration:
                self._ended()

    def _seek(self, item: int) -> None:
        """Have a stream at or before this item."""
        between = item - self._position
        skip = getattr(self._dataset, "skip", None)
        if self._stream is not None and 0 <= between <= (SKIPPED_MIN if skip else item):
            return
        if skip is None:
            self._stream, self._position = iter(self._dataset), 0
        else:
            self._stream, self._position = iter(skip(item)), item

    def _read_next(self) -> Any:
        assert self._stream is not None
        taken = next(self._stream)
        self._position += 1
        return taken

    def _ended(self) -> None:
        """The stream has ended. Where it ended is its length, unless it began behind its end."""
        if self._length is not None:
            raise ConfigError(
                f"the dataset had {self._length} items before, and ends at {self._position} now: "
                "it must yield the same items in each pass, on each node"
            )
        self._length, self._stream = self._position, None
        if getattr(self._dataset, "skip", None) is not None:
            self._length = sum(1 for _ in self._dataset)
        if self._length == 0:
            raise ConfigError("the dataset has no items")


def is_stream(dataset: object) -> bool:
    """Whether a dataset has no numbered items, and is only iterated over."""
    numbered = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return isinstance(dataset, torch_data.IterableDataset) or not numbered


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The way in which items become batches."""

    collate_fn: Collate | None = None
    """None: torch's default_collate."""
    num_workers: int = 0
    """Processes that load items; 0: the loop's own one does."""
    prefetch: int | None = None
    """Batches that each of these processes loads before they are needed; None: 2."""

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise ConfigError(f"num_workers must not be negative, got {self.num_workers}")
        if self.prefetch is not None and (self.prefetch < 1 or not self.num_workers):
            raise ConfigError(
                f"prefetch={self.prefetch} with num_workers={self.num_workers}: it is the number "
                "of batches that each worker loads ahead, at least 1: give num_workers too, or "
                "leave it out"
            )

    @property
    def ahead(self) -> int:
        """Batches that are drawn before they are needed."""
        return self.num_workers * (self.prefetch or PREFETCH)

    def batches(self, dataset: Any, draws: Iterator[list[int]], *, predictable: bool) -> Any:
        """Yield a batch of the dataset's items for each of `draws`, the numbers of its items.
        `predictable`: numbers may be drawn ahead of the steps."""
        collate = cast(Collate, self.collate_fn or torch_data.default_collate)
        if not self.num_workers:
            return (collate([dataset[item] for item in items]) for items in draws)
        if not predictable:
            return self._one_by_one(dataset, draws, collate)
        return iter(
            torch_data.DataLoader(
                dataset,
                batch_sampler=_Once(draws),
                num_workers=self.num_workers,
                prefetch_factor=self.prefetch or PREFETCH,
                collate_fn=collate,
                worker_init_fn=forget_worker,
            )
        )

    def _one_by_one(self, dataset: Any, draws: Iterator[list[int]], collate: Collate) -> Any:
        """Each batch is loaded when it is needed, by all processes together."""
        shares: list[list[int]] = []
        loader = torch_data.DataLoader(
            dataset,
            batch_sampler=shares,
            num_workers=self.num_workers,
            prefetch_factor=1,
            collate_fn=_as_they_are,
            worker_init_fn=forget_worker,
            persistent_workers=True,
        )
        for items in draws:
            size = -(-len(items) // self.num_workers)
            shares[:] = [items[start : start + size] for start in range(0, len(items), size)]
            yield collate([item for share in loader for item in share])


class Sampler(torch_data.Sampler[list[int]]):
    """Brings the run's samples to a DataLoader of a map-style dataset, in place of its shuffling.

        loader = DataLoader(dataset, batch_sampler=lowcomm.Sampler(peer, dataset), num_workers=4)
        for batch in loader:
            if method.finished:
                break
            ...

    Each element is a list of item numbers, of this rank's share of a batch of `run.data.batch`
    items: no two nodes, and no two ranks, get the same one in one pass over the data, even if nodes
    join and leave. One iterator draws until the run is finished; there is no epoch and no length.
    """

    def __init__(
        self,
        peer: "Peer",
        dataset: Dataset,
        *,
        accumulate: int = 1,
        ahead: int = AHEAD,
        share: Share = None,
    ) -> None:
        """`peer` may have no method yet; it needs one before the first batch. `dataset`: only its
        length is used. `accumulate`: batches for each `method.step()`. `ahead`: batches that the
        loader draws before their steps, at least `num_workers * prefetch_factor` of the DataLoader;
        with a per-step method none, so that it needs `num_workers=0`. `share` is as in
        `peer.batches`. Raises ConfigError if the dataset has no items."""
        with peer.fitting():
            self._order = ItemOrder(len(dataset), seed=peer.run.seed)
        self._peer, self._accumulate, self._ahead = peer, accumulate, ahead
        self._share = share

    def __iter__(self) -> Iterator[list[int]]:
        """Raises LowcommError before the method is made, ConfigError if a value does not fit."""
        peer = self._peer
        with peer.fitting():
            peer.reserve(accumulate=self._accumulate, ahead=self._ahead, share=self._share)
        while not peer.finished:
            yield self._order.items(peer.draw())


class _Once(torch_data.Sampler[list[int]]):
    """Draws that were made by an iterator, for a loader."""

    def __init__(self, draws: Iterator[list[int]]) -> None:
        self._draws = draws

    def __iter__(self) -> Iterator[list[int]]:
        return self._draws


def forget_worker(worker: int) -> None:
    """Call this in a loading process. A dataset that divides its items among the processes would
    leave out items, since their numbers are divided already."""
    import torch.utils.data._utils.worker as torch_worker

    torch_worker._worker_info = None  # pyright: ignore


def _as_they_are(items: list[Any]) -> list[Any]:
    return items
