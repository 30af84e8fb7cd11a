"""8-bit integers with one fp32 scale for each 256 values: 1.016 bytes a value, rounded to nearest.

A code q in -127..127 stands for q x scale; scale = largest magnitude / 127. Error: at most half a
scale (plus 2**-22 of the value). If the largest magnitude is below 2**-100, the block is sent as
zeros. A block with a NaN or an infinity is decoded as NaNs. Must NOT let a neighbour's value decide
the rounding: there is no dither.
"""

import numpy as np

from lowcomm.codecs.blocks import Array, BlockCodec, BlockScratch, compiled, scale_rows, to_units
from lowcomm.numerics.operations import F32

LEVELS = 127


class Int8(BlockCodec):
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "int8"
    grain = 256
    record = np.dtype([("scale", "<f4"), ("codes", "i1", (grain,))])
    bits = 8
    kernels = compiled("int8")

    def encode_blocks(
        self, values_RB: F32, records_R: Array, scratch: BlockScratch, filled: int
    ) -> None:
        del filled  # Padding zeros do not raise a scale.
        units_RB, records_R["scale"] = to_units(values_RB, LEVELS, scratch)
        np.rint(units_RB, out=units_RB)  # Halfway between two integers, to the even one.
        np.copyto(records_R["codes"], units_RB, casting="unsafe")

    def decode_blocks(self, records_R: Array, out_RB: F32, scratch: BlockScratch) -> None:
        units_RB = scratch.floats(out_RB.shape)
        np.copyto(units_RB, records_R["codes"])
        scale_rows(units_RB, records_R["scale"], out_RB)
