"""Arrays of a fragment's size outside huge pages.

numpy puts arrays of this size in huge pages, and the first touch of each may stall the daemon's
loop for 2 ms (`peers/sockets/memory_pages.py`). Must NOT know the content of the arrays.
"""

import numpy as np

from lowcomm.numerics.kernels import F32
from peers.sockets import fresh


def zeros(elements: int) -> F32:
    """Zeros, fp32 [elements]. The kernel provides each page when it is first written."""
    return np.frombuffer(fresh(4 * elements), np.float32)


def copy_of(array_P: F32) -> F32:
    """A copy of an array, fp32 [P]."""
    copy_P = zeros(array_P.size)
    copy_P[:] = array_P
    return copy_P
