"""int8 beside the same arithmetic written value by value, and what it loses."""

import struct

import numpy as np
import pytest

from lowcomm.codecs.codec import Codec
from lowcomm.codecs.int4 import Int4
from lowcomm.codecs.int8 import Int8
from lowcomm.numerics.operations import F32
from tests.lowcomm.codecs.samples import encoded, there_and_back


def slow_codes(values: F32, levels: int) -> tuple[np.float32, list[int]]:
    peak = np.float32(max(abs(value) for value in values))
    inverse = np.float32(levels) / peak
    return peak / np.float32(levels), [int(np.rint(value * inverse)) for value in values]


def test_a_block_is_its_scale_and_its_codes() -> None:
    values = np.random.default_rng(0).standard_normal(600, np.float32)
    expected = b""
    for start in (0, 256, 512):
        scale, codes = slow_codes(values[start : start + 256], 127)
        expected += struct.pack("<f", scale) + struct.pack(f"{len(codes)}b", *codes)
    assert encoded(Int8(), values) == expected


def test_int4_puts_the_first_of_two_values_into_the_lower_half_of_a_byte() -> None:
    values = np.random.default_rng(0).standard_normal(257, np.float32)
    scale, codes = slow_codes(values[:256], 7)
    packed = [(a + 8) | (b + 8) << 4 for a, b in zip(codes[::2], codes[1::2], strict=True)]
    payload = encoded(Int4(), values)
    assert payload[:132] == struct.pack("<f", scale) + bytes(packed)
    assert payload[136:] == (bytes([0x8F]) if values[256] > 0 else bytes([0x81]))


@pytest.mark.parametrize(("one", "levels"), [(Int8(), 127), (Int4(), 7)])
def test_whole_numbers_of_the_scale_are_exact(one: Codec, levels: int) -> None:
    values = np.arange(-levels, levels + 1).astype(np.float32) * np.float32(0.25)
    assert (there_and_back(one, values) == values).all()


def test_two_peers_lose_less_than_stated_on_normal_numbers() -> None:
    """As the issue asks: contributions and their mean, both in int8."""
    random = np.random.default_rng(5)
    first, second = random.standard_normal((2, 1 << 20), np.float32)
    mean = (there_and_back(Int8(), first) + there_and_back(Int8(), second)) * np.float32(0.5)
    exact = (first.astype(np.float64) + second) / 2
    error = np.subtract(there_and_back(Int8(), mean), exact)
    assert float(np.sqrt(np.square(error).mean())) <= 0.0072
    assert abs(error.mean()) < 4 * 0.0072 / 2**10  # Four standard errors of a mean that is 0.
