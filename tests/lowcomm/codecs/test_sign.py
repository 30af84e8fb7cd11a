"""One bit a value: signs, and the mean magnitude."""

import struct

import numpy as np
import pytest

from lowcomm.codecs.sign import Sign
from tests.lowcomm.codecs.samples import encoded, there_and_back


def test_signs_and_the_mean_magnitude() -> None:
    values = np.random.default_rng(0).standard_normal(1100, np.float32)
    back = there_and_back(Sign(), values)
    assert (np.signbit(back) == np.signbit(values)).all()
    for block, mine in ((values[:1024], back[:1024]), (values[1024:], back[1024:])):
        assert abs(mine[0]) == pytest.approx(np.abs(block.astype(np.float64)).mean(), rel=1e-7)
        assert (np.abs(mine) == abs(mine[0])).all()


def test_the_first_value_is_the_lowest_bit() -> None:
    values = np.array([-3, 1, 1, 1, 1, 1, 1, 1, -0.0], np.float32)
    assert encoded(Sign(), values) == struct.pack("<f", 10 / 9) + bytes([0x01, 0x01])
