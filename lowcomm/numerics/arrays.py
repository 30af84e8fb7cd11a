"""Arrays of a fragment's size: all that a daemon keeps for long, made in one place.

They lie in memory, or in files. numpy would put them in huge pages, and the first touch of each may
stall the daemon's loop for 2 ms (`peers/sockets/memory_pages.py`). Must NOT know the content of the
arrays.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowcomm.numerics.kernels import F32
from peers.sockets import fresh


@dataclass(frozen=True, slots=True)
class LargeArrays:
    """Makes the large arrays of one node. All methods raise OSError if the disk refuses."""

    directory: Path | None = None
    """Each array is a file of its own without a name in this directory; None: in memory."""

    def zeros(self, elements: int) -> F32:
        """Zeros, fp32 [elements]. The kernel provides each page when it is first written."""
        return np.frombuffer(self.buffer(4 * elements), np.float32)

    def copy_of(self, array_P: F32) -> F32:
        """A copy of an array, fp32 [P]."""
        copy_P = self.zeros(array_P.size)
        copy_P[:] = array_P
        return copy_P

    def buffer(self, size: int) -> memoryview:
        """`size` zero bytes."""
        return fresh(size, self.directory)


IN_MEMORY = LargeArrays()
