"""Batches of a program's own dataset: the items of leased samples, loaded here or by processes.

Which samples a batch has is decided where it is drawn, in the rank's own process; loading processes
get the numbers of items only. Must NOT know which node holds a sample (lowcomm/data/lease.py), nor
touch a parameter.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch.utils.data as torch_data

from lowcomm.data.batches import Batches
from protocols.types import ConfigError

Collate = Callable[[list[Any]], Any]
"""Joins the items of a batch."""
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
