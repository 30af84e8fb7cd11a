"""A daemon's large arrays are zeros that can be written to, or copies that nobody shares."""

from pathlib import Path

import numpy as np
import pytest

from lowcomm.numerics.arrays import IN_MEMORY, LargeArrays


@pytest.fixture(params=["memory", "file"])
def large(request: pytest.FixtureRequest, tmp_path: Path) -> LargeArrays:
    return IN_MEMORY if request.param == "memory" else LargeArrays(tmp_path)


@pytest.mark.parametrize("elements", [0, 1, 1025, 1 << 19])
def test_zeros_are_one_dimensional_and_ours_to_write(large: LargeArrays, elements: int) -> None:
    array_P = large.zeros(elements)
    assert array_P.shape == (elements,)
    assert array_P.dtype == np.float32
    assert array_P.flags.c_contiguous
    assert array_P.flags.aligned
    assert not array_P.any()
    array_P += 1
    assert array_P.sum() == elements


def test_a_copy_is_another_ones_memory(large: LargeArrays) -> None:
    array_P = np.arange(1000, dtype=np.float32)
    copy_P = large.copy_of(array_P)
    array_P[:] = 0
    assert copy_P.tolist() == list(range(1000))
