"""TernGrad: unbiased, and the same bytes for the same values."""

import numpy as np
import pytest

from lowcomm.codecs.base import CodecError
from lowcomm.codecs.ternary import Ternary
from tests.lowcomm.codecs.samples import encoded, largest, there_and_back

DRAWS = 2000


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
    with pytest.raises(CodecError, match="stands for nothing"):
        Ternary().decode(payload, out)
    assert (out == 7).all()
