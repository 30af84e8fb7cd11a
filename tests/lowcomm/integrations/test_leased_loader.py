"""Another project's data loader with leased items: batches, refusals, random numbers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lowcomm.config.schema import DataConfig, RunConfig
from lowcomm.integrations.leased_loader import LeasedBatches, leased_loader
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

    run = RunConfig(data=DataConfig(batch=8))
    world_size = 2

    def __init__(self, *steps: list[int]) -> None:
        self._steps = iter(steps)

    def batches(self, dataset: Any, /) -> Iterator[Tensor]:
        assert list(dataset) == list(range(ITEMS))
        for step in self._steps:
            yield torch.tensor(step)

    def fitting(self) -> AbstractContextManager[None]:
        return nullcontext()


def test_a_step_takes_as_many_batches_as_are_accumulated() -> None:
    batches = LeasedBatches(Leases([3, 1, 4, 9], [5, 2, 6, 0]), items=ITEMS, rows=2)
    assert list(batches) == [[3, 1], [4, 9], [5, 2], [6, 0]]


def test_a_second_iteration_goes_on_where_the_first_one_ended() -> None:
    batches = LeasedBatches(Leases([3, 1], [5, 2], [6, 0]), items=ITEMS, rows=2)
    assert next(iter(batches)) == [3, 1]
    assert list(batches) == [[5, 2], [6, 0]]


def test_the_loader_has_the_same_dataset_and_collate_function() -> None:
    own = DataLoader(Squares(), batch_size=2, shuffle=True, collate_fn=list)
    loader = leased_loader(Leases([3, 1, 4, 9]), own, rows=2, accumulated=2)
    assert list(loader) == [[9, 1], [16, 81]]


def test_an_iteration_draws_nothing_from_the_program_s_random_numbers() -> None:
    loader = leased_loader(Leases([3, 1, 4, 9]), DataLoader(Squares(), batch_size=4), rows=4)
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
        leased_loader(Leases(), DataLoader(dataset), rows=rows, accumulated=accumulated)
