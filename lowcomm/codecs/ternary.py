"""TernGrad (arXiv:1705.07878): each value becomes -s, 0 or s; s is the largest magnitude of 1024.

2 bits a value and one fp32 for each 1024: 0.254 bytes a value. A value v is sent as s, with the
sign of v, with probability |v| / s, so that the expectation is v (to 2**-24 of s), and the error is
at most s. If s is below 2**-100, the block is sent as zeros. The paper's clipping is biased, and is
not done here. The random numbers are counter-based: their seed is a hash of the block's own values
and the key, so the same values give the same bytes, and blocks of different values have different
seeds. A block with a NaN or an infinity is decoded as NaNs. Must NOT draw from a generator.
"""

from functools import cache

import numpy as np
import xxhash

from lowcomm.codecs.bits import counted_bits
from lowcomm.codecs.blocks import (
    Array,
    BlockCodec,
    BlockScratch,
    largest,
    pack_quarters,
    scale_rows,
    scales,
    take_values,
    value_table,
)
from lowcomm.codecs.codec import CodecError
from lowcomm.numerics.operations import F32

_DRAWS = 1 << 24
"""A random number is one of this many, all of which fp32 represents exactly."""


class Ternary(BlockCodec):
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "ternary"
    grain = 1024
    record = np.dtype([("scale", "<f4"), ("codes", "u1", (grain // 4,))])
    bits = 2

    def __init__(self, key: int = 0) -> None:
        """`key` (64 bits): with another key, other random numbers are drawn for the same values."""
        self.key = key

    def encode_blocks(
        self, values_RB: F32, records_R: Array, scratch: BlockScratch, filled: int
    ) -> None:
        chance_RB = scratch.floats(values_RB.shape)
        peak_R = largest(values_RB, chance_RB.view(np.uint32))
        _, inverse_R, void_R = scales(peak_R, _DRAWS)
        records_R["scale"] = scales(peak_R, 1)[0]
        np.multiply(chance_RB, inverse_R[:, None], out=chance_RB)
        seeds_R = np.array(
            [xxhash.xxh3_64_intdigest(row[:filled].data.cast("B"), self.key) for row in values_RB],
            np.uint64,
        )
        draw_RB = np.empty(values_RB.shape, np.uint32)
        counted_bits(seeds_R, draw_RB)
        draw_RB >>= np.uint32(8)
        codes_RB = scratch.bytes(0, values_RB.shape)
        np.less(draw_RB.astype(np.float32), chance_RB, out=codes_RB.view(np.bool_))
        if void_R is not None:
            codes_RB[void_R] = 0
        codes_RB <<= np.signbit(values_RB).view(np.uint8)  # 1 is s, 2 is -s.
        pack_quarters(codes_RB, records_R["codes"])

    def decode_blocks(self, records_R: Array, out_RB: F32, scratch: BlockScratch) -> None:
        units_RB = scratch.floats(out_RB.shape)
        take_values(_table(), records_R["codes"], units_RB, scratch)
        scale_rows(units_RB, records_R["scale"], out_RB)

    def check_blocks(self, records_R: Array) -> None:
        codes_RC = records_R["codes"]
        if (codes_RC & (codes_RC >> np.uint8(1)) & np.uint8(0x55)).any():
            raise CodecError("ternary: an undefined code")


@cache
def _table() -> Array:
    """A table of the four values of each byte."""
    return value_table((0.0, 1.0, -1.0, 0.0), numbers=1 << 8, entry=np.complex128)
