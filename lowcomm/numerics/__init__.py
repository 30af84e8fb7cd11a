"""fp32 arithmetic with the same bits on every peer.

In: numpy arrays of one fragment. Out: pseudo-gradients, weighted and robust means, outer steps,
digests, discrete cosine transforms. Each operation rounds once; compiled loops (_arithmetic.c,
_cosines.c) and numpy give the same bits on every instruction set. Must NOT import torch, nor use an
operation with a result that depends on the CPU or on how work is cut.

Start reading: operations.py, then kernels.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.numerics import dct, operations
    from lowcomm.numerics.kernels import F32, NORM_ELEMENTS, Loops, NumpyLoops, loops
    from lowcomm.numerics.operations import LARGE_BYTES, weighted_mean

__all__ = [
    "F32",
    "LARGE_BYTES",
    "NORM_ELEMENTS",
    "Loops",
    "NumpyLoops",
    "dct",
    "loops",
    "operations",
    "weighted_mean",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "kernels": "F32 Loops NORM_ELEMENTS NumpyLoops loops",
        "operations": "LARGE_BYTES weighted_mean",
    },
)
