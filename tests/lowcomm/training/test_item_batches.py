"""Batches of a dataset, with and without processes that load its items."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data as torch_data

from lowcomm.training.item_batches import ItemOrder, Loading
from protocols.types.errors import ConfigError

DRAWS = [[3, 1], [0, 2], [7, 7], [4, 6], [5, 9]]


class Squares:
    """Squares of numbers; with the loading process, if it is known."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, bool]:
        return index * index, torch_data.get_worker_info() is not None


def joined(items: list[Any]) -> list[Any]:
    return [item[0] for item in items]


def drawn(log: list[int]) -> Iterator[list[int]]:
    for number, items in enumerate(DRAWS):
        log.append(number)
        yield items


@pytest.mark.parametrize(
    ("workers", "predictable", "most"), [(0, True, 0), (2, True, 4), (1, False, 0), (2, False, 0)]
)
def test_items_are_loaded_in_the_order_of_the_draws(
    workers: int, predictable: bool, most: int
) -> None:
    loading = Loading(collate_fn=joined, num_workers=workers)
    log = list[int]()
    found = list[Any]()
    for batch in loading.batches(Squares(), drawn(log), predictable=predictable):
        found.append(batch)
        assert len(log) <= len(found) + most, "no more is drawn ahead than was said"
    assert found == [[item * item for item in items] for items in DRAWS]
    assert loading.ahead == 2 * workers


def test_a_dataset_in_a_loading_process_does_not_divide_its_items_once_more() -> None:
    loading = Loading(num_workers=1, prefetch=3)
    assert loading.ahead == 3
    (values, others) = next(loading.batches(Squares(), drawn([]), predictable=True))
    assert values.tolist() == [9, 1]
    assert others.tolist() == [False, False]


def test_values_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers must not be negative, got -1"):
        Loading(num_workers=-1)
    for prefetch, workers in ((2, 0), (0, 1)):
        with pytest.raises(ConfigError, match="that each worker loads ahead, at least 1"):
            Loading(prefetch=prefetch, num_workers=workers)
    with pytest.raises(ConfigError, match="the dataset has no items"):
        ItemOrder(0, seed=1)


def test_each_pass_visits_every_item_once() -> None:
    order = ItemOrder(10, seed=4)
    passes = [order.items(range(start, start + 10)) for start in (0, 10)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(10))
    assert passes[0] != passes[1]
