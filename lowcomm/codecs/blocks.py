"""The shared part of block-wise codecs: each block becomes a record (a header, then packed codes).

If a codec has compiled loops (_kernels.c) and this installation could build them, one call converts
all blocks. Otherwise numpy does, many blocks at a time, in pieces that stay in the L2 cache: a
numpy call costs a microsecond, and a pass over memory as much as the arithmetic in it. Both make
the same bytes. Must NOT contain a constant of a single codec, or sum in an order that numpy may
choose: the bytes are the same on every machine.

Shapes: R blocks of B values, packed into C bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from lowcomm.codecs.bits import INFINITY_WORD, MAGNITUDE, U32
from lowcomm.codecs.codec import Payload, WritablePayload, check_size
from lowcomm.numerics.operations import F32

Array = npt.NDArray[Any]
U8 = npt.NDArray[np.uint8]

WORK_ELEMENTS = 1 << 16
"""Values in a piece (256 KiB of fp32): the piece, its scratch and its bytes stay in the L2
cache."""
SCALED_MIN = np.float32(2.0**-100)
"""If a block's largest magnitude is below this, the block is sent as zeros, so that no scale, and
no reciprocal of a scale, is denormal or infinite."""
_SCALED_MIN_WORD = SCALED_MIN.view(np.uint32)
NAN = np.uint32(0x7FC00000).view(np.float32)
"""The only NaN that codecs send: CPUs differ in the NaNs that they make."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled loops of a codec, over whole blocks. They do not hold the GIL."""

    encode: Callable[[F32, Array], None]
    """Encodes values_RB into records_R."""
    decode: Callable[[Array, F32], None]


def compiled(name: str) -> Kernels | None:
    """The compiled loops of a codec; None if no C compiler was present at installation."""
    try:
        loops = import_module("lowcomm.codecs._kernels")
    except ImportError:
        return None
    return Kernels(getattr(loops, f"{name}_encode"), getattr(loops, f"{name}_decode"))


class BlockScratch:
    """Scratch arrays for one piece of R blocks. Pages that are never touched cost nothing."""

    def __init__(self, elements: int) -> None:
        self._floats = np.empty(elements, np.float32)
        self._indices = np.empty(-(-elements // 2), np.intp)  # A number holds two values or more.
        self._bytes = np.empty((2, elements), np.uint8)

    def floats(self, shape: tuple[int, ...]) -> F32:
        return _shaped(self._floats, shape)

    def indices(self, shape: tuple[int, ...]) -> npt.NDArray[np.intp]:
        return _shaped(self._indices, shape)

    def bytes(self, which: int, shape: tuple[int, ...]) -> U8:
        return _shaped(self._bytes[which], shape)


class BlockCodec:
    """Implements `lowcomm.codecs.codec.Codec`. A subclass sets `name`, `grain`, `record` and
    `bits`, may set `kernels`, and implements `encode_blocks` and `decode_blocks`.

    Values that are packed into one byte are neighbours, the first in the lowest bits. So the record
    of a last block that is not full is the beginning of a full record.
    """

    name: str
    grain: int
    """Values in a block (B), a power of two."""
    record: np.dtype[Any]
    bits: int
    """Bits of one packed value."""
    kernels: Kernels | None = None
    reducible = True

    def encode_blocks(
        self, values_RB: F32, records_R: Array, scratch: BlockScratch, filled: int
    ) -> None:
        """Fill the records. `filled`: values that are sent of each block; the others are zeros."""
        raise NotImplementedError

    def decode_blocks(self, records_R: Array, out_RB: F32, scratch: BlockScratch) -> None:
        raise NotImplementedError

    def check_blocks(self, records_R: Array) -> None:
        """Raise CodecError for records that no values are encoded as."""

    def encoded_bytes(self, elements: int) -> int:
        blocks, rest = divmod(elements, self.grain)
        return blocks * self.record.itemsize + (self._rest_bytes(rest) if rest else 0)

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        assert len(out) == self.encoded_bytes(values_P.size), "out has another size"
        assert values_P.flags.c_contiguous, "not contiguous"
        blocks, rest = divmod(values_P.size, self.grain)
        values_RB = values_P[: blocks * self.grain].reshape(blocks, self.grain)
        self._encode(values_RB, np.frombuffer(out, self.record, blocks), self.grain)
        if rest:
            last_1B = np.zeros((1, self.grain), np.float32)
            last_1B[0, :rest] = values_P[blocks * self.grain :]
            record_1 = np.zeros(1, self.record)
            self._encode(last_1B, record_1, rest)
            used = self._rest_bytes(rest)
            memoryview(out)[len(out) - used :] = record_1.tobytes()[:used]

    def decode(self, payload: Payload, out_P: F32) -> None:
        check_size(self, payload, out_P.size)
        assert out_P.flags.c_contiguous, "not contiguous"
        blocks, rest = divmod(out_P.size, self.grain)
        records_R = np.frombuffer(payload, self.record, blocks)
        last_1 = np.zeros(1, self.record)
        if rest:
            used = self._rest_bytes(rest)
            last_1.view(np.uint8)[:used] = np.frombuffer(payload, np.uint8)[-used:]
        for piece in self._pieces(blocks):
            self.check_blocks(records_R[piece])
        self.check_blocks(last_1)
        self._decode(records_R, out_P[: blocks * self.grain].reshape(blocks, self.grain))
        if rest:
            last_1B = np.empty((1, self.grain), np.float32)
            self._decode(last_1, last_1B)
            out_P[blocks * self.grain :] = last_1B[0, :rest]

    def _encode(self, values_RB: F32, records_R: Array, filled: int) -> None:
        if self.kernels is not None:
            self.kernels.encode(values_RB, records_R)
            return
        scratch = BlockScratch(min(WORK_ELEMENTS, values_RB.size))
        with np.errstate(all="ignore"):
            for piece in self._pieces(len(records_R)):
                self.encode_blocks(values_RB[piece], records_R[piece], scratch, filled)

    def _decode(self, records_R: Array, out_RB: F32) -> None:
        if self.kernels is not None:
            self.kernels.decode(records_R, out_RB)
            return
        scratch = BlockScratch(min(WORK_ELEMENTS, out_RB.size))
        with np.errstate(all="ignore"):
            for piece in self._pieces(len(records_R)):
                self.decode_blocks(records_R[piece], out_RB[piece], scratch)

    def _pieces(self, blocks: int) -> list[slice]:
        step = WORK_ELEMENTS // self.grain
        return [slice(at, min(at + step, blocks)) for at in range(0, blocks, step)]

    def _rest_bytes(self, rest: int) -> int:
        header = self.record.itemsize - self.grain * self.bits // 8
        return header + -(-rest * self.bits // 8)


def largest(values_RB: F32, magnitudes_RB: U32) -> U32:
    """The bits of each block's largest magnitude, uint32 [R]; those of all magnitudes go into
    `magnitudes_RB`.

    As integers, magnitudes have the order of the numbers, with NaNs last, and numpy's maximum of
    integers is four times as fast as that of floats.
    """
    np.bitwise_and(values_RB.view(np.uint32), MAGNITUDE, out=magnitudes_RB)
    starts = _starts(values_RB.shape[0], values_RB.shape[1])
    return np.maximum.reduceat(magnitudes_RB.reshape(-1), starts)


def scales(largest_R: U32, levels: int) -> tuple[F32, F32, npt.NDArray[np.bool_] | None]:
    """(scales, their inverses, blocks to be sent without values or None), each [R], for blocks with
    these largest magnitudes.

    A scale is largest / levels. For a block to be sent without values it is 0 (too small to matter)
    or NaN (not all values are finite), and its inverse is 0.
    """
    peak_R = largest_R.view(np.float32)
    void_R = None
    if largest_R.min() < _SCALED_MIN_WORD or largest_R.max() >= INFINITY_WORD:
        void_R = (largest_R < _SCALED_MIN_WORD) | (largest_R >= INFINITY_WORD)
    if void_R is not None:
        peak_R = peak_R.copy()
        peak_R[void_R] = 1
    scale_R = np.divide(peak_R, np.float32(levels))
    np.minimum(scale_R, _scale_limit(levels), out=scale_R)
    inverse_R = np.divide(np.float32(levels), peak_R)
    if void_R is None:
        return scale_R, inverse_R, None
    inverse_R[void_R] = 0
    scale_R[void_R] = np.where(largest_R[void_R] >= INFINITY_WORD, NAN, np.float32(0))
    return scale_R, inverse_R, void_R


def to_units(values_RB: F32, levels: int, scratch: BlockScratch) -> tuple[F32, F32]:
    """(values divided by their block's scale, [R, B], in `scratch`; scales, [R]). A block to be
    sent without values becomes zeros."""
    units_RB = scratch.floats(values_RB.shape)
    peak_R = largest(values_RB, units_RB.view(np.uint32))
    scale_R, inverse_R, void_R = scales(peak_R, levels)
    scale_rows(values_RB, inverse_R, units_RB)
    if void_R is not None:
        units_RB[void_R] = 0
    return units_RB, scale_R


def scale_rows(units_RB: F32, scale_R: Array, out_RB: F32) -> None:
    """Write each block times its scale. Spreading the scales over `out_RB` first is faster than
    multiplying row by row: numpy takes longer to begin a row of a product than to compute its 256
    values."""
    np.copyto(out_RB, scale_R.copy()[:, None])
    np.multiply(units_RB, out_RB, out=out_RB)


def take_values(table: Array, packed: Array, out_RB: F32, scratch: BlockScratch) -> None:
    """Unpack by table: each number in `packed` selects one entry, which is several values wide."""
    index = scratch.indices(packed.shape)
    np.copyto(index, packed)
    # mode="raise" would write to a copy of `out` first; the table has an entry for every number.
    np.take(table, index.reshape(-1), out=out_RB.reshape(-1).view(table.dtype), mode="wrap")


def value_table(codes: tuple[float, ...], *, numbers: int, entry: type[Any] | str) -> Array:
    """A table of the values of the codes that are packed in each number below `numbers`, one entry
    for each."""
    bits = (len(codes) - 1).bit_length()
    width = np.dtype(entry).itemsize // 4
    shifts = np.arange(width, dtype=np.int64) * bits
    picked = (np.arange(numbers)[:, None] >> shifts) & ((1 << bits) - 1)
    return np.array(codes, np.float32)[picked].view(entry).reshape(numbers)


def pack_nibbles(codes_RB: U8, out_RC: U8) -> None:
    """Pack two codes below 16 into each byte. Overwrites `codes_RB`."""
    pairs = codes_RB.view(np.uint16)
    shifted = pairs >> np.uint16(4)
    np.bitwise_or(pairs, shifted, out=pairs)
    np.copyto(out_RC, pairs, casting="unsafe")  # The lower byte.


def pack_quarters(codes_RB: U8, out_RC: U8) -> None:
    """Pack four codes below 4 into each byte. Overwrites `codes_RB`."""
    fours = codes_RB.view(np.uint32)
    fours |= fours >> np.uint32(6)
    fours |= fours >> np.uint32(12)
    np.copyto(out_RC, fours, casting="unsafe")


def unpack_nibbles(packed_RC: Array, scratch: BlockScratch) -> U8:
    """Unpack the codes of `pack_nibbles`, uint8 [R, B], in `scratch`."""
    shape = (packed_RC.shape[0], 2 * packed_RC.shape[1])
    codes_RB, spare_RB = scratch.bytes(0, shape), scratch.bytes(1, shape)
    pairs, shifted = codes_RB.view(np.uint16), spare_RB.view(np.uint16)
    np.copyto(pairs, packed_RC)
    np.left_shift(pairs, np.uint16(4), out=shifted)
    np.bitwise_or(pairs, shifted, out=pairs)
    np.bitwise_and(pairs, np.uint16(0x0F0F), out=pairs)
    return codes_RB


@cache
def _scale_limit(levels: int) -> np.float32:
    """The largest scale for which levels x scale does not overflow, even if the scale was rounded
    up."""
    return np.nextafter(np.finfo(np.float32).max / np.float32(levels), np.float32(0))


@cache
def _starts(blocks: int, width: int) -> npt.NDArray[np.intp]:
    return np.arange(0, blocks * width, width, dtype=np.intp)


def _shaped(array: Array, shape: tuple[int, ...]) -> Any:
    size = 1
    for length in shape:
        size *= length
    return array[:size].reshape(shape)
