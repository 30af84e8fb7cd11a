"""E3M0, as in Streaming DiLoCo (arXiv:2501.18512): 4 bits, a sign and three bits of exponent.

The paper gives no scale and no rounding; these are ours. Each 256 values have one fp32 scale, their
largest magnitude; codes 1..7 stand for scale x 2**-6 .. scale x 2**0, code 0 for 0. A value gets
the nearest code, and the larger one halfway between two: the borders are 2**-7 and 1.5 x 2**k of
the scale, compared with value x fp32(1 / scale). Error: at most a third of the value, or scale x
2**-7 (plus 2**-20 of either). If the largest magnitude is below 2**-100, the block is sent as
zeros. A block with a NaN or an infinity is decoded as NaNs. 0.516 bytes a value. Must NOT encode a
sum of values that it encoded before: use a finer result codec.
"""

import numpy as np

from lowcomm.codecs.blocks import (
    U8,
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

_ZERO_BELOW = 240
"""Exponent and first mantissa bit of 2**-7, as one number: (127 - 7) x 2. Smaller values become
0."""
_REBASE = np.float32(2.0**120)
_LARGE = np.float32(2.0**7)
"""A scale from here on could overflow if it were multiplied by 2**120."""


class Fp4(BlockCodec):
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "fp4"
    grain = 256
    record = np.dtype([("scale", "<f4"), ("codes", "u1", (grain // 2,))])
    bits = 4
    kernels = compiled("fp4")

    def encode_blocks(
        self, values_RB: F32, records_R: Array, scratch: BlockScratch, filled: int
    ) -> None:
        del filled  # Padding zeros do not raise a scale.
        units_RB, records_R["scale"] = to_units(values_RB, 1, scratch)
        shape, words_RB = values_RB.shape, units_RB.view(np.uint32)
        # Units are at most 1: exponent and first mantissa bit fit into 8 bits; the sign is cut off.
        np.right_shift(words_RB, np.uint32(22), out=words_RB)
        codes_RB = scratch.bytes(0, shape)
        np.copyto(codes_RB, words_RB, casting="unsafe")
        _nearest(codes_RB, scratch.bytes(1, shape))
        sign_RB = scratch.bytes(1, shape)
        np.signbit(values_RB, out=sign_RB.view(np.bool_))
        np.multiply(sign_RB, np.uint8(8), out=sign_RB)  # numpy's shift takes nine times as long.
        np.bitwise_or(codes_RB, sign_RB, out=codes_RB)
        pack_nibbles(codes_RB, records_R["codes"])

    def decode_blocks(self, records_R: Array, out_RB: F32, scratch: BlockScratch) -> None:
        words_RB = scratch.floats(out_RB.shape).view(np.uint32)
        np.copyto(words_RB, unpack_nibbles(records_R["codes"], scratch))
        # The sign moves to bit 31, the code to the exponent: 2**120 too small, and 0 for code 0.
        np.multiply(words_RB, np.uint32((1 << 28) + (1 << 23)), out=words_RB)
        np.bitwise_and(words_RB, np.uint32(0x83800000), out=words_RB)
        units_RB, scale_R = words_RB.view(np.float32), records_R["scale"].astype(np.float32)
        if (np.abs(scale_R) < _LARGE).all():  # A sender may write any scale, also below 0.
            scale_R *= _REBASE
        else:
            np.multiply(units_RB, _REBASE, out=units_RB)
        scale_rows(units_RB, scale_R, out_RB)


def _nearest(halves_RB: U8, spare_RB: U8) -> None:
    """Convert numbers of exponent and first mantissa bit (240: 2**-7, 241: 1.5 x 2**-7, 242: 2**-6
    ...) to codes, in place."""
    sent_RB = spare_RB.view(np.bool_)
    np.greater_equal(halves_RB, np.uint8(_ZERO_BELOW), out=sent_RB)
    np.subtract(halves_RB, np.uint8(_ZERO_BELOW - 1), out=halves_RB)
    np.multiply(halves_RB, spare_RB, out=halves_RB)
    np.equal(halves_RB, np.uint8(1), out=sent_RB)
    np.right_shift(halves_RB, np.uint8(1), out=halves_RB)
    np.add(halves_RB, spare_RB, out=halves_RB)
