"""E3M0: the nearest of its numbers, whatever the values."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs.fp4 import Fp4
from lowcomm.numerics.operations import F32
from tests.lowcomm.codecs.samples import encoded, make_values, there_and_back

NUMBERS = np.array([0.0, *(2.0**power for power in range(-6, 1))])


def nearest_distance(values: F32, scale: float) -> np.ndarray:
    grid = np.concatenate([NUMBERS, -NUMBERS]) * scale
    return np.abs(values[:, None].astype(np.float64) - grid).min(axis=1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 256), st.integers(0, 999), st.sampled_from([0, 3, 8]))
def test_every_value_becomes_the_nearest_number(size: int, seed: int, spread: int) -> None:
    values = make_values(size, seed, spread, [])
    back = there_and_back(Fp4(), values)
    scale = float(np.abs(values).max())
    assert set(np.abs(back).astype(np.float64) / scale) <= set(NUMBERS)
    error = np.abs(back.astype(np.float64) - values)
    # x times fp32(1 / scale) is off by 2**-23: nearer than that to a border either side will do.
    assert (error <= nearest_distance(values, scale) + np.abs(values) * 2.0**-21).all()


def test_the_codes_at_the_borders() -> None:
    below = np.nextafter(np.float32(2.0**-7), np.float32(0))
    up = [2.0**-7, 1.5 * 2.0**-6, 1.5 * 2.0**-2, 0.75]
    down = [float(np.nextafter(np.float32(value), np.float32(0))) for value in up]
    values = np.array([1.0, -1.0, below, -below, *up, *down], np.float32)
    back = there_and_back(Fp4(), values)
    ups, downs = [2.0**-6, 2.0**-5, 0.5, 1.0], [0.0, 2.0**-6, 0.25, 0.5]
    assert back.tolist() == [1.0, -1.0, 0.0, 0.0, *ups, *downs]


def test_a_block_is_its_scale_and_two_codes_a_byte() -> None:
    values = np.array([2.0, -2.0, 0.0, -1.0, 0.03125], np.float32)
    assert encoded(Fp4(), values) == b"\x00\x00\x00\x40" + bytes(
        [0x7 | 0xF << 4, 0x0 | 0xE << 4, 1]
    )
