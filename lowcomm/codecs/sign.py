"""Signs and a mean magnitude: one bit a value and one fp32 for each 1024, 0.129 bytes a value.

Every value of a block is decoded as plus or minus the block's mean magnitude, which minimises the
squared error; 0.0 is positive and -0.0 negative. Error: the difference between the value's
magnitude and the mean magnitude, plus 2**-23 of the mean or 2**-149 for rounding. The mean is
summed in fp64 in one fixed order. A block with a NaN or an infinity is decoded as NaNs. Must NOT be
used without error
feedback where magnitudes matter: it is biased.
"""

from functools import cache

import numpy as np

from lowcomm.codecs.blocks import (
    NAN,
    Array,
    BlockCodec,
    BlockScratch,
    scale_rows,
    take_values,
    value_table,
)
from lowcomm.numerics.kernels import ordered_sum
from lowcomm.numerics.operations import F32


class Sign(BlockCodec):
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "sign"
    grain = 1024
    record = np.dtype([("scale", "<f4"), ("signs", "u1", (grain // 8,))])
    bits = 1

    def encode_blocks(
        self, values_RB: F32, records_R: Array, scratch: BlockScratch, filled: int
    ) -> None:
        magnitude_RB = np.abs(values_RB, out=scratch.floats(values_RB.shape))
        scale_R = (ordered_sum(magnitude_RB.astype(np.float64)) / filled).astype(np.float32)
        void_R = ~np.isfinite(scale_R)
        scale_R[void_R] = NAN
        signs_RC = np.packbits(np.signbit(values_RB), axis=1, bitorder="little")
        signs_RC[void_R] = 0
        records_R["scale"] = scale_R
        records_R["signs"] = signs_RC

    def decode_blocks(self, records_R: Array, out_RB: F32, scratch: BlockScratch) -> None:
        units_RB = scratch.floats(out_RB.shape)
        take_values(_table(), records_R["signs"], units_RB, scratch)
        scale_rows(units_RB, records_R["scale"], out_RB)


@cache
def _table() -> Array:
    """A table of the eight values of each byte."""
    return value_table((1.0, -1.0), numbers=1 << 8, entry="V32")
