"""Top-k of 2 bits: the places are top-k's, and each value is the mean of its code."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs.codec import CodecError
from lowcomm.codecs.topk import TopK
from lowcomm.codecs.topk2bit import CHUNK, GROUP, TopK2Bit
from lowcomm.numerics.kernels import F32
from tests.lowcomm.codecs.samples import encoded, there_and_back

SHARED = GROUP * CHUNK
"""Values that share a table."""
KEPT = st.sampled_from([1, 4, 64])


def slowly(values: F32, keep: int) -> F32:
    """What is decoded, from its definition; exact where sums are."""
    out = np.zeros_like(values)
    for start in range(0, values.size, SHARED):
        here = range(start, min(start + SHARED, values.size))
        sent: list[int] = []
        for first in here[::CHUNK]:
            chunk = range(first, min(first + CHUNK, values.size))
            sent += sorted(chunk, key=lambda i: (-abs(values[i]), i))[:keep]
        exact = values.astype(np.float64)
        border = np.abs(exact[sent]).sum() / len(sent)
        codes = {i: (exact[i] < 0, abs(exact[i]) > border) for i in sent}
        for code in set(codes.values()):
            same = [i for i in sent if codes[i] == code]
            out[same] = exact[same].sum() / len(same)
    return out


@settings(max_examples=25)
@given(
    st.sampled_from([1, 7, 64, 65, CHUNK, CHUNK + 3, SHARED, SHARED + 5, SHARED + CHUNK + 70]),
    KEPT,
    st.integers(0, 99),
    st.sampled_from([2, 40, 1000]),
)
def test_the_largest_become_the_means_of_their_codes_and_the_rest_zero(
    size: int, keep: int, seed: int, most: int
) -> None:
    """Of whole numbers, whose sums are exact in any order."""
    values = np.random.default_rng(seed).integers(-most, most + 1, size).astype(np.float32)
    assert there_and_back(TopK2Bit(keep), values).tobytes() == slowly(values, keep).tobytes()


@settings(max_examples=25)
@given(st.integers(1, 3 * CHUNK), KEPT, st.integers(0, 99))
def test_what_is_sent_is_what_topk_sends_and_signs_are_kept(
    size: int, keep: int, seed: int
) -> None:
    """bf16 has a place for every normal number but 0, so topk shows what it sends."""
    values = np.random.default_rng(seed).standard_normal(size, np.float32)
    back = there_and_back(TopK2Bit(keep), values)
    assert (np.sign(back) == np.sign(there_and_back(TopK(keep), values))).all()
    assert len(set(back.tolist()) - {0.0}) <= 4


def test_a_table_is_followed_by_indices_and_four_codes_a_byte() -> None:
    values = np.zeros(2 * CHUNK, np.float32)
    values[[0x123, 0x456, 0x789, 0xFFF]] = [1.0, -3.0, 4.0, -1.0]
    values[[CHUNK, CHUNK + 1, CHUNK + 2, CHUNK + 3]] = [-1.0, -1.0, 2.0, 3.0]
    table = struct.pack("<4f", 1.5, 3.5, -1.0, -3.0)  # The mean magnitude is 2.
    first = bytes([0x23, 0x61, 0x45, 0x89, 0xF7, 0xFF]) + bytes([0 | 3 << 2 | 1 << 4 | 2 << 6])
    second = bytes([0x00, 0x10, 0x00, 0x02, 0x30, 0x00]) + bytes([2 | 2 << 2 | 0 << 4 | 1 << 6])
    assert encoded(TopK2Bit(4), values) == table + first + second


@pytest.mark.parametrize(
    "indices",
    [
        bytes([0x23, 0x31, 0x12, 0x89, 0xF7, 0xFF]),  # Twice 0x123.
        bytes([0x23, 0x21, 0x12, 0x89, 0xF7, 0xFF]),  # 0x122 after 0x123.
    ],
)
def test_indices_that_nobody_sends_are_refused(indices: bytes) -> None:
    """Whatever is good before them."""
    good = encoded(TopK2Bit(4), np.ones(SHARED, np.float32))
    out = np.full(SHARED + CHUNK, 7, np.float32)
    with pytest.raises(CodecError, match="topk2bit"):
        TopK2Bit(4).decode(good + bytes(16) + indices + bytes(1), out)
    assert (out == 7).all()


def test_an_index_beyond_a_short_chunk_and_bits_after_the_last_one_are_refused() -> None:
    out = np.full(5, 7, np.float32)
    for indices, why in ((bytes([5, 0]), "beyond the block"), (bytes([4, 0x10]), "bits after")):
        with pytest.raises(CodecError, match=f"topk2bit: .*{why}"):
            TopK2Bit(1).decode(bytes(16) + indices + bytes(1), out)
    assert (out == 7).all()


def test_what_is_lost_of_what_is_sent() -> None:
    """As docs/codecs.md has it."""
    random = np.random.default_rng(0)
    for values, lost in (
        (random.standard_normal(8 * SHARED, np.float32), 0.069),
        (random.laplace(size=8 * SHARED).astype(np.float32), 0.123),
    ):
        back = there_and_back(TopK2Bit(), values)
        sent = values[back != 0].astype(np.float64)
        error = np.linalg.norm(sent - back[back != 0]) / np.linalg.norm(sent)
        assert error == pytest.approx(lost, rel=0.02)
