"""In torch as in numpy: the same values are chosen, and the same bytes made of them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs import places
from lowcomm.codecs.bits import bf16_of
from lowcomm.flexdemo.torch_codecs import bf16_bits, bytes_of, largest_places, pack_12, words_of
from lowcomm.numerics.kernels import F32
from tests.lowcomm.codecs.samples import SPECIAL, make_values

BLOCK = 37


def some_blocks(seed: int, words: list[tuple[int, int]]) -> F32:
    return make_values(4 * BLOCK, seed, 30, words).reshape(4, BLOCK)


BLOCKS = st.builds(
    some_blocks,
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 4 * BLOCK - 1), st.sampled_from(SPECIAL)), max_size=40),
)


@settings(max_examples=100)
@given(BLOCKS, st.integers(1, BLOCK))
def test_the_same_values_are_the_largest(values_RB: F32, keep: int) -> None:
    """Of equal ones the first, and a NaN before any number."""
    chosen_RK = largest_places(torch.from_numpy(values_RB), keep)
    assert chosen_RK.tolist() == places.largest_places(values_RB, keep).tolist()


@given(st.data(), st.integers(1, BLOCK))
def test_places_take_12_bits(data: st.DataObject, keep: int) -> None:
    each = st.lists(st.integers(0, places.CHUNK - 1), min_size=keep, max_size=keep)
    places_RK = np.array(data.draw(st.lists(each, min_size=1, max_size=3)))
    packed_RS = pack_12(torch.from_numpy(places_RK))
    assert packed_RS.numpy().tobytes() == places.pack_places(places_RK).tobytes()
    assert packed_RS.shape == (len(places_RK), places.index_bytes(keep))


@settings(max_examples=100)
@given(BLOCKS)
def test_bf16_is_rounded_alike(values_RB: F32) -> None:
    """Saturated, not infinite; a NaN stays one."""
    halves_RB = bf16_bits(torch.from_numpy(values_RB))
    halves = bf16_of(values_RB.reshape(-1)).astype("<u2").tobytes()
    assert bytes_of(halves_RB, 2).numpy().tobytes() == halves


def test_the_lowest_byte_is_the_first() -> None:
    numbers_RK = torch.tensor([[0x030201, 0x060504]])
    assert bytes_of(numbers_RK, 3).tolist() == [[1, 2, 3, 4, 5, 6]]


@given(BLOCKS)
def test_words_are_little_endian(values_RB: F32) -> None:
    """Also of a view whose values do not lie one after the other."""
    for view_RB in (values_RB, values_RB[:, ::3], values_RB.T):
        words_RS = words_of(torch.from_numpy(view_RB))
        assert words_RS.numpy().tobytes() == view_RB.astype("<f4").tobytes()
