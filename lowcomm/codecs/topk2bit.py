"""The 64 largest of each 4096 values, as 12-bit indices and 2 bits each: 0.0276 bytes a value.

16 chunks share four fp32 values, one for each code. A code gives the sign, and whether the
magnitude is above the mean magnitude of the values that are sent; it is decoded as the mean of the
values that have it. SparseLoCo's borders are at -2.25, -0.75 and 0.75 standard deviations from the
mean (docs/codecs.md compares): the values that top-k selects have two humps and nothing between
them, so the sign carries most of the information. A chunk takes 112 bytes, and 1 byte for its share
of the four values; a table for each tensor would need the tensors' borders. Error: a value that is
not sent becomes 0. A value that is sent keeps its sign; its magnitude is off by at most the width
of its bin, from the smallest sent magnitude to the mean one or from there to the largest, plus
2**-22 of the largest or 2**-149 for rounding. All sums are taken in fp64 in one fixed order. Used
with gather and error feedback. If one of the chunks that share values has a NaN or an infinity, all
of them are decoded as NaNs. Must NOT accept indices out of order, twice, or beyond the chunk.
"""

import numpy as np
import numpy.typing as npt

from lowcomm.codecs.blocks import NAN, pack_quarters
from lowcomm.codecs.codec import Payload, WritablePayload, check_size
from lowcomm.codecs.places import (
    CHUNK,
    U8,
    Places,
    chunks,
    index_bytes,
    largest_places,
    pack_places,
    unpack_places,
)
from lowcomm.numerics.kernels import ordered_sum
from lowcomm.numerics.operations import F32

GROUP = 16
"""Chunks that share a table: 16 bytes beside their 1792. With half as many chunks the tables would
cost 1.8 % of the bytes."""
_TABLE = np.dtype(("<f4", (4,)))
_NEGATIVE = np.uint8(2)
"""Added to the code of a negative value."""


class TopK2Bit:
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "topk2bit"
    grain = GROUP * CHUNK
    reducible = False

    def __init__(self, keep: int = 64) -> None:
        assert 1 <= keep <= CHUNK
        assert keep & (keep - 1) == 0, "a power of two"  # As `ordered_sum` requires.
        self.keep = keep

    def encoded_bytes(self, elements: int) -> int:
        whole, rest = divmod(elements, CHUNK)
        tables = -(-elements // self.grain) * _TABLE.itemsize
        return tables + whole * _record_bytes(self.keep) + _record_bytes(min(self.keep, rest))

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        assert len(out) == self.encoded_bytes(values_P.size), "out has another size"
        wire, at = np.frombuffer(out, np.uint8), 0
        for first in range(0, values_P.size, self.grain):
            grids = chunks(values_P[first : first + self.grain], GROUP)
            places = [largest_places(grid, min(self.keep, grid.shape[1])) for grid in grids]
            kept = [np.take_along_axis(*pair, axis=1) for pair in zip(grids, places, strict=True)]
            means_4, codes_N = self._quantised(np.concatenate([each.reshape(-1) for each in kept]))
            wire[at : at + _TABLE.itemsize] = means_4.astype("<f4").view(np.uint8)
            at += _TABLE.itemsize
            for places_RK in places:
                codes_RK, codes_N = np.split(codes_N, [places_RK.size])
                records_RS = self._records(wire, at, places_RK.shape)
                split = index_bytes(places_RK.shape[1])
                records_RS[:, :split] = pack_places(places_RK)
                _pack(codes_RK.reshape(places_RK.shape), records_RS[:, split:])
                at += records_RS.size

    def decode(self, payload: Payload, out_P: F32) -> None:
        check_size(self, payload, out_P.size)
        wire, at = np.frombuffer(payload, np.uint8), 0
        found: list[tuple[F32, Places, F32]] = []
        for first in range(0, out_P.size, self.grain):
            means_4 = wire[at : at + _TABLE.itemsize].view("<f4").astype(np.float32)
            at += _TABLE.itemsize
            for out_RC in chunks(out_P[first : first + self.grain], GROUP):
                keep = min(self.keep, out_RC.shape[1])
                records_RS = self._records(wire, at, (out_RC.shape[0], keep))
                split = index_bytes(keep)
                indices_RS = records_RS[:, :split]
                places_RK = unpack_places(self.name, indices_RS, keep, out_RC.shape[1])
                values_RK = means_4[_unpack(records_RS[:, split:], keep)]
                found.append((out_RC, places_RK, values_RK))
                at += records_RS.size
        out_P[:] = 0  # Only now, when all records are known to be valid.
        for out_RC, places_RK, values_RK in found:
            np.put_along_axis(out_RC, places_RK, values_RK, axis=1)

    def _records(self, wire: U8, at: int, shape: tuple[int, int]) -> U8:
        """The records of `shape[0]` chunks with `shape[1]` kept values each, a view, uint8 [R,
        S]."""
        size = _record_bytes(shape[1])
        return wire[at : at + shape[0] * size].reshape(shape[0], size)

    def _quantised(self, kept_N: F32) -> tuple[F32, U8]:
        """(mean of each code's values, fp32 [4], 0 for a code that no value has; codes, uint8
        [N])."""
        with np.errstate(all="ignore"):
            terms_N = kept_N.astype(np.float64)
            border = self._sum(np.abs(terms_N)) / kept_N.size
            if not np.isfinite(border):
                return np.full(4, NAN), np.zeros(kept_N.size, np.uint8)
            codes_N = (np.abs(terms_N) > border).astype(np.uint8)
            codes_N[terms_N < 0] += _NEGATIVE
            means_4 = np.zeros(4, np.float32)
            for code in range(4):
                inside_N = codes_N == code
                count = max(np.count_nonzero(inside_N), 1)
                means_4[code] = self._sum(terms_N * inside_N) / count
        return means_4, codes_N

    def _sum(self, terms_N: npt.NDArray[np.float64]) -> np.float64:
        padded_1N = np.zeros((1, GROUP * self.keep), np.float64)
        padded_1N[0, : terms_N.size] = terms_N
        return ordered_sum(padded_1N)[0]


def _record_bytes(keep: int) -> int:
    return index_bytes(keep) + -(-keep // 4)


def _pack(codes_RK: U8, out_RS: U8) -> None:
    """Pack four codes into each byte, the first in the lowest bits."""
    rows, keep = codes_RK.shape
    padded_RK = np.zeros((rows, -(-keep // 4) * 4), np.uint8)
    padded_RK[:, :keep] = codes_RK
    pack_quarters(padded_RK, out_RS)


def _unpack(packed_RS: U8, keep: int) -> Places:
    shifts_4 = np.arange(0, 8, 2, dtype=np.uint8)
    codes_RK = (packed_RS[:, :, None] >> shifts_4 & np.uint8(3)).reshape(packed_RS.shape[0], -1)
    return codes_RK[:, :keep].astype(np.intp)
