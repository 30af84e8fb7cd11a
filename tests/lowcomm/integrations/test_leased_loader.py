"""Another project's data loader with leased items: batches, refusals, random numbers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lowcomm.config.schema import DataConfig, RunConfig
from lowcomm.integrations.leased_loader import (
    LeasedBatches,
    Parts,
    RemadeStream,
    leased_loader,
)
from lowcomm.training.item_batches import ItemOrder
from protocols.types.errors import ConfigError

ITEMS = 40


class Squares(Dataset[int]):
    """Numbered items."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> int:
        return index * index


class Endless(IterableDataset[int]):
    """Items without numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ITEMS))


class Leases:
    """A peer of two ranks, to which the run gives these items, step by step."""

    run = RunConfig(seed=9, data=DataConfig(batch=8))
    world_size = 2

    def __init__(self, *steps: list[int]) -> None:
        """`steps`: this rank's samples of each."""
        self._steps = list(steps)
        self.ahead = -1

    @property
    def finished(self) -> bool:
        return not self._steps

    def draw(self) -> list[int]:
        return self._steps.pop(0)

    def reserve(self, *, accumulate: int, ahead: int, share: tuple[int, int] | None) -> None:
        assert accumulate == 1
        assert share is None
        self.ahead = ahead

    def fitting(self) -> AbstractContextManager[None]:
        return nullcontext()


def leased(peer: Leases, loader: DataLoader[int], **sizes: Any) -> DataLoader[Any]:
    return leased_loader(cast(Any, peer), loader, **sizes)


def items_of(samples: list[int]) -> list[int]:
    return ItemOrder(ITEMS, seed=Leases.run.seed).items(samples)


def test_a_step_takes_as_many_batches_as_are_accumulated() -> None:
    batches = LeasedBatches([[3, 1, 4, 9], [5, 2, 6, 0]], rows=2)
    assert list(batches) == [[3, 1], [4, 9], [5, 2], [6, 0]]


def test_the_loader_has_the_same_dataset_and_collate_function() -> None:
    own = DataLoader(Squares(), batch_size=2, shuffle=True, collate_fn=list)
    loader = leased(Leases([3, 1, 4, 9]), own, rows=2, accumulated=2)
    squares = [item * item for item in items_of([3, 1, 4, 9])]
    assert list(loader) == [squares[:2], squares[2:]]


def test_a_second_iteration_goes_on_where_the_first_one_ended() -> None:
    loader = leased(Leases([3, 1, 4, 9], [5, 2, 6, 0]), DataLoader(Squares()), rows=4)
    for step in [3, 1, 4, 9], [5, 2, 6, 0]:
        squares = [item * item for item in items_of(step)]
        assert next(iter(loader)).tolist() == squares


def test_batches_that_worker_processes_load_ahead_are_reserved() -> None:
    peer = Leases([3, 1, 4, 9])
    own = DataLoader(Squares(), batch_size=2, num_workers=2, prefetch_factor=3)
    loader = leased(peer, own, rows=2, accumulated=2)
    next(iter(cast(Any, loader.batch_sampler)))
    assert peer.ahead >= 3


def test_an_iteration_draws_nothing_from_the_program_s_random_numbers() -> None:
    loader = leased(Leases([3, 1, 4, 9]), DataLoader(Squares(), batch_size=4), rows=4)
    before = torch.get_rng_state()
    assert len(list(loader)) == 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("dataset", "rows", "accumulated", "complaint"),
    [
        (Endless(), 4, 1, "Endless, which has no numbered items"),
        (Squares(), None, 1, "a batch_sampler of its own"),
        (Squares(), 4, 2, r"has 16 items \(batches of 4, 2 accumulated, 2 ranks\), but .* is 8"),
    ],
)
def test_data_that_cannot_be_leased_is_refused(
    dataset: Dataset[int], rows: int | None, accumulated: int, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        leased(Leases(), DataLoader(dataset), rows=rows, accumulated=accumulated)


class Ticker(IterableDataset[int]):
    """Goes on where its last iteration has ended, as datasets that save their place do."""

    def __init__(self) -> None:
        self._seen = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self._seen += 1
            yield self._seen


def test_a_stream_that_keeps_its_place_is_read_from_its_beginning_each_time() -> None:
    stream = RemadeStream(Ticker)
    for _ in range(3):
        assert list(islice(stream, 3)) == [1, 2, 3]


def test_the_items_of_a_step_become_batches() -> None:
    parts = Parts(tuple, rows=2)
    assert parts([3, 1, 4, 9]) == [(3, 1), (4, 9)]
