"""A daemon's large arrays are zeros that can be written to, or copies that nobody shares."""

import numpy as np
import pytest

from lowcomm.numerics.arrays import copy_of, zeros


@pytest.mark.parametrize("elements", [0, 1, 1025, 1 << 19])
def test_zeros_are_one_dimensional_and_ours_to_write(elements: int) -> None:
    array_P = zeros(elements)
    assert array_P.shape == (elements,)
    assert array_P.dtype == np.float32
    assert array_P.flags.c_contiguous
    assert array_P.flags.aligned
    assert not array_P.any()
    array_P += 1
    assert array_P.sum() == elements


def test_a_copy_is_another_ones_memory() -> None:
    array_P = np.arange(1000, dtype=np.float32)
    copy_P = copy_of(array_P)
    array_P[:] = 0
    assert copy_P.tolist() == list(range(1000))
