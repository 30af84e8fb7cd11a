"""2 bits a value and four fp32 values for each 1024: 0.266 bytes a value. Used with error feedback.

A block's values are put into four bins, with borders at the block's mean and 0.98 standard
deviations on either side (the borders that lose least for a normal distribution). Each value is
decoded as the mean of its bin, so the errors of a block sum to nearly 0. MuLoCo and SparseLoCo do
the same with other borders, which suit the values that top-k selects. Error: at most the width of
the value's bin, where an outer bin ends with the block's last value, plus 2**-22 of the largest
magnitude or 2**-149 for rounding; the sum of squared errors is at most the block's sum of squares.
All sums are taken in fp64 in one fixed order. A block with a NaN or an infinity is decoded as NaNs.
Must NOT encode a sum of values that it encoded before.
"""

import numpy as np
import numpy.typing as npt

from lowcomm.codecs.blocks import (
    NAN,
    Array,
    BlockCodec,
    BlockScratch,
    pack_quarters,
)
from lowcomm.numerics.kernels import ordered_sum
from lowcomm.numerics.operations import F32

BORDER = 0.9816
"""The border of Lloyd and Max for four levels of a normal distribution, in standard deviations."""


class TwoBit(BlockCodec):
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "2bit"
    grain = 1024
    record = np.dtype([("means", "<f4", (4,)), ("codes", "u1", (grain // 4,))])
    bits = 2

    def encode_blocks(
        self, values_RB: F32, records_R: Array, scratch: BlockScratch, filled: int
    ) -> None:
        terms_RB = values_RB.astype(np.float64)
        mean_R = ordered_sum(terms_RB.copy()) / filled
        square_R = ordered_sum(np.square(terms_RB)) / filled
        spread_R = BORDER * np.sqrt(np.maximum(square_R - mean_R * mean_R, 0.0))
        codes_RB = scratch.bytes(0, values_RB.shape)
        codes_RB[:] = 0
        for border_R in (mean_R - spread_R, mean_R, mean_R + spread_R):
            codes_RB += terms_RB > border_R[:, None]
        means_R4 = _bin_means(terms_RB, codes_RB, filled)
        void_R = ~np.isfinite(mean_R)
        means_R4[void_R] = NAN
        codes_RB[void_R] = 0
        records_R["means"] = means_R4
        pack_quarters(codes_RB, records_R["codes"])

    def decode_blocks(self, records_R: Array, out_RB: F32, scratch: BlockScratch) -> None:
        means_R4 = records_R["means"].astype(np.float32)
        packed_RC = records_R["codes"]
        index_RC = scratch.indices(packed_RC.shape)
        first_R1 = np.arange(0, 4 * packed_RC.shape[0], 4, dtype=np.intp)[:, None]
        for place in range(4):
            np.copyto(index_RC, (packed_RC >> np.uint8(2 * place)) & np.uint8(3))
            np.add(index_RC, first_R1, out=index_RC)
            out_RB[:, place::4] = means_R4.reshape(-1)[index_RC]


def _bin_means(terms_RB: npt.NDArray[np.float64], codes_RB: Array, filled: int) -> F32:
    """The mean of each bin's values, fp32 [R, 4]; 0 for an empty bin."""
    means_R4 = np.empty((codes_RB.shape[0], 4), np.float32)
    for code in range(4):
        inside_RB = codes_RB == code
        total_R = ordered_sum(terms_RB * inside_RB)
        count_R = np.count_nonzero(inside_RB[:, :filled], axis=1)
        means_R4[:, code] = total_R / np.maximum(count_R, 1)
    return means_R4
