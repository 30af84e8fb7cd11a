"""Samples by number: each pass has every window once, and any sample is as near as the first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.data.batches import Batches, permutation_keys, permuted, rank_rows, raw_words
from protocols.types.errors import ConfigError

TEXT = np.random.default_rng(0).integers(0, 256, 1003).astype(np.uint8)


def batches(*, window: int = 10, seed: int = 0, length: int = len(TEXT)) -> Batches:
    return Batches(TEXT[:length], window=window, seed=seed)


def order(seed: int, data_pass: int, count: int) -> list[int]:
    keys = permutation_keys(seed, data_pass)
    return permuted(np.arange(count), count, keys=keys).tolist()


@given(st.integers(1, 3000), st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_a_pass_is_a_permutation(count: int, seed: int, data_pass: int) -> None:
    assert sorted(order(seed, data_pass, count)) == list(range(count))


@given(
    count=st.integers(1, 2**60),
    places=st.lists(st.integers(0, 2**60), min_size=1, max_size=50, unique=True),
)
def test_a_place_of_a_large_pass_has_a_window_of_its_own(count: int, places: list[int]) -> None:
    inside = sorted({place % count for place in places})
    found = permuted(np.array(inside), count, keys=permutation_keys(7, 1)).tolist()
    assert len(set(found)) == len(inside)
    assert all(0 <= window < count for window in found)


@given(length=st.integers(12, len(TEXT)), seed=st.integers(-(2**70), 2**70), cut=st.integers(1, 99))
def test_the_sequence_goes_through_every_window_once_in_each_pass(
    length: int, seed: int, cut: int
) -> None:
    split = batches(length=length, seed=seed)
    numbers = list(range(3 * split.num_windows))
    pieces = [numbers[start : start + cut] for start in range(0, len(numbers), cut)]
    sequence = [window for piece in pieces for window in split.windows(piece).tolist()]
    for data_pass in range(3):
        one_pass = sequence[data_pass * split.num_windows :][: split.num_windows]
        assert one_pass == order(seed, data_pass, split.num_windows)


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(order(seed, data_pass, 100)) for seed in (0, 1) for data_pass in (0, 1)]
    assert len(set(orders)) == 4


def test_an_order_looks_random() -> None:
    """Where a window lies says nothing of where it stood, nor of who comes after it."""
    count, passes = 1000, 40
    orders = np.array([order(3, data_pass, count) for data_pass in range(passes)])
    # Tenths by tenths: each cell expects 400, with a deviation of about 19.
    cells, _, _ = np.histogram2d(np.tile(np.arange(count), passes), orders.ravel(), bins=10)
    assert np.abs(cells - count * passes / 100).max() < 100
    steps = np.diff(orders, axis=1)
    assert abs(np.corrcoef(orders[:, 1:].ravel(), orders[:, :-1].ravel())[0, 1]) < 0.03
    assert np.mean(np.abs(steps) == 1) < 0.006  # Of two at random: 0.002.


def test_the_order_is_the_same_everywhere() -> None:
    # Philox-4x64-10's first words, and the order that they make: a golden value, not a recipe.
    assert raw_words(1, 2, 2).tolist() == [5705853004827290377, 6584680345644299050]
    assert order(1, 2, 8) == [2, 4, 6, 0, 7, 1, 3, 5]


def test_a_sample_far_on_is_as_near_as_the_first() -> None:
    assert all(0 <= window < 100 for window in batches().windows([10**15, 2**62]))


def test_a_batch_is_the_bytes_of_its_windows_and_one_more() -> None:
    split, samples = batches(), [3, 5, 99, 100]  # The last one is of the next pass.
    batch = split.of(samples)
    assert batch.shape == (4, 11)
    assert batch.dtype == np.int64
    for row, window in zip(batch, split.windows(samples), strict=True):
        np.testing.assert_array_equal(row, TEXT[window * 10 : window * 10 + 11])


def test_the_last_window_needs_its_last_target() -> None:
    assert batches(length=100).num_windows == 9  # Byte 100 would be the tenth's target.
    assert batches(length=101).num_windows == 10


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_ranks_partition_the_batch(world: int) -> None:
    batch = batches().of(range(6))
    shares = [rank_rows(batch, rank, world) for rank in range(world)]
    assert {share.shape for share in shares} == {(6 // world, 11)}
    np.testing.assert_array_equal(np.concatenate(shares), batch)


def test_ranks_that_cannot_share_equally_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.data\.batch \(6\) .* of 4: .*node\.ranks"):
        rank_rows(batches().of(range(6)), 0, 4)


def test_a_text_shorter_than_a_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match="10 tokens, but one sample takes 11"):
        batches(length=10)
    assert batches(length=11).num_windows == 1
