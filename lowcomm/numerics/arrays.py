"""Arrays of a fragment's size that a daemon makes for itself.

numpy's own would be in huge pages, whose first touch may cost a daemon's loop 2 ms each
(`peers/sockets/memory_pages.py`). Must NOT know what is in them.
"""

import numpy as np

from lowcomm.numerics.kernels import F32
from peers.sockets.memory_pages import fresh


def zeros(elements: int) -> F32:
    """fp32 [elements]; the memory of each page is taken when something is written there."""
    return np.frombuffer(fresh(4 * elements), np.float32)


def copy_of(array_P: F32) -> F32:
    """fp32 [P], the same."""
    copy_P = zeros(array_P.size)
    copy_P[:] = array_P
    return copy_P
