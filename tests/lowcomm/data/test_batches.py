"""The static split: nothing twice, nothing missing, and a step number is the whole state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.data.batches import SLOTS, Batches, permutation, rank_rows, raw_words
from protocols.errors import ConfigError

TEXT = np.random.default_rng(0).integers(0, 256, 1003).astype(np.uint8)


def slot_of(
    slot: int, *, batch: int = 4, window: int = 10, seed: int = 0, length: int = len(TEXT)
) -> Batches:
    return Batches(TEXT[:length], window=window, batch=batch, seed=seed, slot=slot)


@given(
    length=st.integers(12, len(TEXT)), batch=st.integers(1, 7), seed=st.integers(-(2**70), 2**70)
)
def test_each_pass_has_every_window_once_over_all_slots(length: int, batch: int, seed: int) -> None:
    slots = [slot_of(slot, length=length, batch=batch, seed=seed) for slot in range(SLOTS)]
    num_windows = (length - 1) // 10
    steps = 2 * num_windows // (SLOTS * batch) + 1  # Enough for two passes.
    taken_KS = np.stack(
        [np.concatenate([one.windows(step) for step in range(steps)]) for one in slots], axis=1
    )
    sequence = taken_KS.ravel()  # Sample k of slot s is number k * SLOTS + s of the run.
    for data_pass in range(2):
        one_pass = sequence[data_pass * num_windows : (data_pass + 1) * num_windows]
        assert sorted(one_pass.tolist()) == list(range(num_windows))
        assert one_pass.tolist() == permutation(seed, data_pass, num_windows).tolist()


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    orders = [permutation(seed, data_pass, 100) for seed in (0, 1) for data_pass in (0, 1)]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_the_order_is_the_same_everywhere() -> None:
    # Philox-4x64-10's first words, and the order they sort into: a golden value, not a recipe.
    assert raw_words(1, 2, 2).tolist() == [5705853004827290377, 6584680345644299050]
    assert permutation(1, 2, 8).tolist() == [4, 2, 0, 6, 1, 5, 7, 3]


def test_a_resumed_node_goes_on_where_it_was() -> None:
    going = slot_of(5)
    taken = [going.node_batch(step) for step in range(40)]
    assert 20 * going.num_windows < 40 * 4 * SLOTS  # Over many passes.
    resumed = slot_of(5)
    for step in (17, 39, 3):
        np.testing.assert_array_equal(resumed.node_batch(step), taken[step])


def test_a_step_far_on_is_as_near_as_the_first() -> None:
    far = slot_of(3).windows(10**15)
    assert all(0 <= window < 100 for window in far)


def test_a_batch_is_the_bytes_of_its_windows_and_one_more() -> None:
    node = slot_of(2)
    batch = node.node_batch(1)
    assert batch.shape == (4, 11)
    assert batch.dtype == np.int64
    for row, window in zip(batch, node.windows(1), strict=True):
        np.testing.assert_array_equal(row, TEXT[window * 10 : window * 10 + 11])


def test_the_last_window_needs_its_last_target() -> None:
    assert slot_of(0, length=100).num_windows == 9  # Byte 100 would be the tenth's target.
    assert slot_of(0, length=101).num_windows == 10


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_ranks_partition_the_batch(world: int) -> None:
    batch = slot_of(0, batch=6).node_batch(0)
    shares = [rank_rows(batch, rank, world) for rank in range(world)]
    assert {share.shape for share in shares} == {(6 // world, 11)}
    np.testing.assert_array_equal(np.concatenate(shares), batch)


def test_ranks_that_cannot_share_equally_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.data\.batch \(6\) .* node\.ranks \(4\)"):
        rank_rows(slot_of(0, batch=6).node_batch(0), 0, 4)


def test_a_text_shorter_than_a_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match="10 bytes, but one sample takes 11"):
        slot_of(0, length=10)
    assert slot_of(0, length=11).num_windows == 1
