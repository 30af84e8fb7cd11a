"""TernGrad: unbiased, and the same bytes for the same values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs.codec import CodecError
from lowcomm.codecs.ternary import Ternary
from lowcomm.numerics.kernels import F32
from tests.lowcomm.codecs.samples import encoded, largest, there_and_back

DRAWS = 2000
SETS = 300
BLOCK = 1024
DEVIATIONS = 7
"""So far off are fewer than one of 10**9 means of SETS draws."""


def test_the_mean_over_many_keys_is_the_value() -> None:
    values = np.random.default_rng(0).standard_normal(1024 + 50, np.float32)
    scale = largest(values, 1024)
    assert set(np.abs(there_and_back(Ternary(), values)) / scale) == {0.0, 1.0}
    total = np.zeros(values.size)
    for key in range(DRAWS):
        total += there_and_back(Ternary(key), values)
    share = np.abs(values) / scale
    deviation = scale * np.sqrt(share * (1 - share) / DRAWS)
    assert (np.abs(total / DRAWS - values) <= 5 * deviation + 1e-6).all()
    assert abs((total / DRAWS - values).mean()) < 5 * float(deviation.mean()) / np.sqrt(values.size)


def value_sets(size: int, seed: int, *, one_differs: bool) -> F32:
    """SETS of `size` values of -0.8 .. -0.2 and 0.2 .. 0.8, of which each block has a 1 in front,
    and whose last value, or whose every value, is another one in each set."""
    random = np.random.default_rng(seed)
    sign = random.choice(np.array([-1, 1], np.float32), size)
    values = np.tile(sign * random.uniform(0.2, 0.8, size).astype(np.float32), (SETS, 1))
    changed = [*range(BLOCK - 1, size, BLOCK), size - 1] if one_differs else range(size)
    values[:, changed] = sign[changed] * random.uniform(0.2, 0.8, (SETS, len(changed)))
    values[:, ::BLOCK] = 1
    return values


@settings(max_examples=20)
@given(
    st.one_of(st.integers(2, 70), st.integers(2, 2 * BLOCK + 70)),
    st.integers(0, 999),
    st.booleans(),
)
def test_under_one_key_the_mean_over_other_values_is_theirs(
    size: int, seed: int, one_differs: bool
) -> None:
    """Runs have no other key than 0: there the values alone bring the chance."""
    values = value_sets(size, seed, one_differs=one_differs)
    error = np.array([there_and_back(Ternary(), each) for each in values]).astype(np.float64)
    error -= values
    share = np.abs(values.astype(np.float64))
    square = share * (1 - share)
    assert (np.abs(error.sum(axis=0)) <= DEVIATIONS * np.sqrt(square.sum(axis=0))).all()
    outward = error * np.sign(values)
    assert abs(outward.sum()) <= DEVIATIONS * np.sqrt(square.sum())


def test_blocks_draw_other_numbers_and_keys_too() -> None:
    values = np.random.default_rng(0).standard_normal(2048, np.float32)
    values[1024:] = values[:1024] + np.float32(1e-4)
    one, other = encoded(Ternary(1), values), encoded(Ternary(2), values)
    assert one == encoded(Ternary(1), values)
    assert one[4:260] != one[264:]
    assert one != other


def test_a_code_that_stands_for_nothing_is_refused() -> None:
    payload = bytearray(encoded(Ternary(), np.ones(2050, np.float32)))
    payload[264 + 100] = 0b1100
    out = np.full(2050, 7, np.float32)
    with pytest.raises(CodecError, match="an undefined code"):
        Ternary().decode(payload, out)
    assert (out == 7).all()
