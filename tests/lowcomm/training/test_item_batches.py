"""Batches of a dataset, with and without processes that load its items."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data as torch_data

from lowcomm.training.item_batches import SKIPPED_MIN, ItemOrder, Loading, StreamItems, is_stream
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


class Stream:
    """Numbers from 0, without a length. `read`: how many were read."""

    def __init__(self, items: int) -> None:
        self.items, self.read = items, 0

    def __iter__(self) -> Iterator[int]:
        return self.after(0)

    def after(self, first: int) -> Iterator[int]:
        for item in range(first, self.items):
            self.read += 1
            yield item


class SkippingStream(Stream):
    """A stream that need not be read from its beginning."""

    def skip(self, items: int) -> Iterator[int]:
        return self.after(items)


@pytest.mark.parametrize("kind", [Stream, SkippingStream])
def test_the_items_of_a_stream_are_found_by_their_numbers_in_any_pass(kind: type[Stream]) -> None:
    items = StreamItems(kind(7))
    numbers = [0, 1, 4, 5, 2, 3, 6, 7, 8, 20, 14, 13, 700]
    assert [items[number] for number in numbers] == [number % 7 for number in numbers]
    late = StreamItems(kind(7))
    assert [late[30], late[31]] == [2, 3]


def test_a_stream_is_read_once_as_long_as_numbers_grow() -> None:
    stream = Stream(100)
    items = StreamItems(stream)
    assert [items[number] for number in (3, 4, 50, 99)] == [3, 4, 50, 99]
    assert stream.read == 100
    skipping = SkippingStream(10 * SKIPPED_MIN)
    items = StreamItems(skipping)
    far = 5 * SKIPPED_MIN
    assert [items[number] for number in (0, far, far + 3, 1)] == [0, far, far + 3, 1]
    assert skipping.read == 1 + 4 + 1


def test_streams_that_cannot_be_read_again_are_refused() -> None:
    with pytest.raises(ConfigError, match="is a generator, which can be read only once"):
        StreamItems(number for number in range(4))
    with pytest.raises(ConfigError, match="the dataset has no items"):
        StreamItems(Stream(0))[5]
    shrinks = Stream(9)
    items = StreamItems(shrinks)
    assert items[16] == 7
    shrinks.items = 5
    assert items[9] == 0
    with pytest.raises(ConfigError, match="had 9 items before, and ends at 5 now"):
        items[17]


def test_a_loading_process_reads_a_stream_of_its_own() -> None:
    items = StreamItems(Stream(40))
    assert items[6] == 6
    loading = Loading(collate_fn=list, num_workers=2)
    found = list(loading.batches(items, iter([[1, 2], [0, 9], [41]]), predictable=True))
    assert found == [[1, 2], [0, 9], [1]]


def test_what_is_a_stream() -> None:
    class Iterable(torch_data.IterableDataset[int]):
        """A dataset of torch without numbers."""

        def __iter__(self) -> Iterator[int]:
            return iter(())

    assert is_stream(Stream(3))
    assert is_stream(Iterable())
    assert not is_stream(Squares())
    assert not is_stream([1, 2])


STREAMING = """
import sys
from datasets import load_dataset
from lowcomm.training.item_batches import Loading, StreamItems, is_stream

if __name__ == "__main__":
    files = sorted(sys.argv[1:])
    rows = load_dataset("json", data_files=files, split="train", streaming=True)
    assert is_stream(rows)
    ranges = (range(0, 8), range(2500, 2508), range(8, 16), range(2996, 3004), range(1500, 1508))
    for workers in (0, 2):
        loading = Loading(collate_fn=list, num_workers=workers)
        batches = loading.batches(StreamItems(rows), map(list, ranges), predictable=True)
        for items, batch in zip(ranges, batches, strict=True):
            assert [row["id"] for row in batch] == [item % 3000 for item in items], workers
    print("exact")
"""


@pytest.mark.long  # Needs the package datasets.
def test_rows_of_a_streamed_dataset_are_found_by_their_numbers(tmp_path: Path) -> None:
    files = [tmp_path / f"{part}.jsonl" for part in range(3)]
    for part, file in enumerate(files):
        numbers = range(1000 * part, 1000 * (part + 1))
        file.write_text("".join(f'{{"id": {n}, "text": "row {n}"}}\n' for n in numbers))
    program = tmp_path / "program.py"
    program.write_text(STREAMING, encoding="ascii")
    argv = [sys.executable, str(program), *map(str, files)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stdout) == (0, "exact\n"), done.stderr
