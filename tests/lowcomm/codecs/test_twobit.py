"""2 bits: each value becomes the mean of its bin."""

import numpy as np
import pytest

from lowcomm.codecs.twobit import BORDER, TwoBit
from tests.lowcomm.codecs.samples import there_and_back


def test_bins_and_their_means() -> None:
    values = np.random.default_rng(0).standard_normal(1500, np.float32) + np.float32(0.3)
    back = there_and_back(TwoBit(), values)
    for start in (0, 1024):
        block = values[start : start + 1024].astype(np.float64)
        borders = block.mean() + np.array([-BORDER, 0, BORDER]) * block.std()
        bins = np.searchsorted(borders, block)
        expected = np.array([block[bins == number].mean() for number in range(4)])[bins]
        np.testing.assert_allclose(back[start : start + 1024], expected, rtol=1e-6)
        assert (back[start : start + 1024] - block).mean() == pytest.approx(0, abs=1e-7)


def test_what_a_normal_distribution_loses() -> None:
    values = np.random.default_rng(0).standard_normal(1 << 17, np.float32)
    error = there_and_back(TwoBit(), values) - values
    assert np.mean(error**2) == pytest.approx(0.1175, rel=0.02)  # Lloyd and Max's least: 0.1175.


def test_equal_values_are_exact() -> None:
    values = np.full(1030, -0.7, np.float32)
    assert (there_and_back(TwoBit(), values) == values).all()
