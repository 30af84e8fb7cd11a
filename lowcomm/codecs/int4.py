"""4-bit integers with one fp32 scale for each 256 values: 0.516 bytes a value, rounded to nearest.

A code q in -7..7, sent as q + 8, stands for q x scale; scale = largest magnitude / 7. Error: at
most half a scale (plus 2**-22 of the value). If the largest magnitude is below 2**-100, the block
is sent as zeros. A block with a NaN or an infinity is decoded as NaNs. Must NOT let a neighbour's
value decide the rounding: there is no dither.
"""

import numpy as np

from lowcomm.codecs.blocks import (
    Array,
    BlockCodec,
    BlockScratch,
    compiled,
    pack_nibbles,
    scale_rows,
    to_units,
    unpack_nibbles,
)
from lowcomm.numerics.operations import F32

LEVELS = 7
OFFSET = 8


class Int4(BlockCodec):
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "int4"
    grain = 256
    record = np.dtype([("scale", "<f4"), ("codes", "u1", (grain // 2,))])
    bits = 4
    kernels = compiled("int4")

    def encode_blocks(
        self, values_RB: F32, records_R: Array, scratch: BlockScratch, filled: int
    ) -> None:
        del filled  # Padding zeros do not raise a scale.
        units_RB, records_R["scale"] = to_units(values_RB, LEVELS, scratch)
        np.rint(units_RB, out=units_RB)  # Halfway between two integers, to the even one.
        codes_RB = scratch.bytes(0, values_RB.shape)
        np.copyto(codes_RB.view(np.int8), units_RB, casting="unsafe")
        np.add(codes_RB, np.uint8(OFFSET), out=codes_RB)
        pack_nibbles(codes_RB, records_R["codes"])

    def decode_blocks(self, records_R: Array, out_RB: F32, scratch: BlockScratch) -> None:
        units_RB = scratch.floats(out_RB.shape)
        codes_RB = unpack_nibbles(records_R["codes"], scratch)
        np.subtract(codes_RB, np.uint8(OFFSET), out=codes_RB)
        np.copyto(units_RB, codes_RB.view(np.int8))
        scale_rows(units_RB, records_R["scale"], out_RB)
