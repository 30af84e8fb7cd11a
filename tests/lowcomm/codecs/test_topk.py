"""Top-k: which values, in which bytes, and which bytes are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs.bf16 import Bf16
from lowcomm.codecs.codec import CodecError
from lowcomm.codecs.topk import CHUNK, TopK
from tests.lowcomm.codecs.samples import encoded, there_and_back


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 7, 64, 65, 4096, 5000, 20 * CHUNK]),
    st.sampled_from([1, 3, 64]),
    st.integers(0, 99),
)
def test_the_largest_are_sent_and_of_equals_the_first(size: int, keep: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-40, 41, size).astype(np.float32)
    expected = np.zeros_like(values)
    for start in range(0, size, CHUNK):
        chunk = values[start : start + CHUNK]
        chosen = sorted(range(chunk.size), key=lambda i: (-abs(chunk[i]), i))[:keep]
        expected[start : start + CHUNK][chosen] = chunk[chosen]
    assert (there_and_back(TopK(keep), values) == expected).all()


def test_two_indices_lie_in_three_bytes_and_values_are_bf16() -> None:
    values = np.zeros(CHUNK, np.float32)
    values[[0x123, 0x456, 0xFFF]] = [1.0, -3.0, 2.0]
    halves = np.array([1.0, -3.0, 2.0], np.float32)
    indices = bytes([0x23, 0x61, 0x45, 0xFF, 0x0F])
    assert encoded(TopK(3), values) == indices + encoded(Bf16(), halves)


@pytest.mark.parametrize(
    "indices",
    [
        bytes([0x23, 0x31, 0x12, 0xFF, 0x0F]),  # Twice 0x123.
        bytes([0x23, 0x21, 0x12, 0xFF, 0x0F]),  # 0x122 after 0x123.
        bytes([0x23, 0x61, 0x45, 0xFF, 0x1F]),  # Bits after the last one.
    ],
)
def test_indices_that_nobody_sends_are_refused(indices: bytes) -> None:
    out = np.full(2 * CHUNK, 7, np.float32)
    good = encoded(TopK(3), np.ones(CHUNK, np.float32))
    with pytest.raises(CodecError, match="topk"):
        TopK(3).decode(good + indices + bytes(6), out)
    assert (out == 7).all()


def test_an_index_beyond_a_short_chunk_is_refused() -> None:
    out = np.full(5, 7, np.float32)
    with pytest.raises(CodecError, match="beyond the block"):
        TopK(1).decode(bytes([5, 0, 0, 0]), out)
    assert (out == 7).all()


def test_most_of_the_energy_is_kept() -> None:
    values = np.random.default_rng(0).standard_t(2, CHUNK * 4).astype(np.float32)
    rest = values - there_and_back(TopK(), values)
    assert np.square(rest).sum() < 0.6 * np.square(values).sum()
