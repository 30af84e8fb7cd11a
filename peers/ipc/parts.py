"""The parts of a node's fragments that a rank writes and reads, as runs of elements.

The daemon of a rank's own host does not need them: the rank writes into its memory. The parts of a
rank on another host travel over a connection, in pieces, which both ends cut alike. Must NOT know
what an element means, nor send anything.
"""

import itertools
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from peers.ipc.msgpack_records import LinkError
from protocols.types import TensorSpec

ELEMENT_BYTES = 4
PIECE_ELEMENTS = 1 << 15
"""Elements of a piece (128 KiB): a control message waits for one piece at most."""
PARTS_MAX = 1 << 20
"""Runs that a rank may report: 48 MiB while they are unpacked."""
_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class Runs:
    """Elements of one fragment: `count` runs of `length` elements, the first from `start` on, each
    `step` elements after the one before."""

    fragment: int
    start: int
    length: int
    step: int
    count: int
    writes: bool
    """The rank writes them; otherwise it only reads them."""

    @property
    def total(self) -> int:
        return self.length * self.count

    @property
    def end(self) -> int:
        """The element of the fragment that follows the last one."""
        return self.start + (self.count - 1) * self.step + self.length

    def pieces(self) -> Iterator["Runs"]:
        """These elements in the same order, cut into pieces of at most PIECE_ELEMENTS."""
        fragment, step, writes = self.fragment, self.step, self.writes
        if self.length >= PIECE_ELEMENTS:
            for row in range(self.count):
                for at in range(0, self.length, PIECE_ELEMENTS):
                    size = min(PIECE_ELEMENTS, self.length - at)
                    start = self.start + row * step + at
                    yield Runs(fragment, start, size, step, 1, writes)
            return
        rows = PIECE_ELEMENTS // self.length
        for row in range(0, self.count, rows):
            start, count = self.start + row * step, min(rows, self.count - row)
            yield Runs(fragment, start, self.length, step, count, writes)

    def gather(self, fragment: memoryview) -> bytes:
        """The elements, in order, of the whole fragment: uint8 [fragment_bytes]."""
        return b"".join(fragment[first:last] for first, last in self._bounds())

    def scatter(self, fragment: memoryview, values: memoryview) -> None:
        """Put the elements, in order, into their places of the whole fragment. Raises LinkError if
        there are more or fewer of them."""
        if len(values) != ELEMENT_BYTES * self.total:
            raise LinkError(f"a piece of {len(values)} bytes, not {ELEMENT_BYTES * self.total}")
        at, size = 0, ELEMENT_BYTES * self.length
        for first, last in self._bounds():
            fragment[first:last] = values[at : at + size]
            at += size

    def _bounds(self) -> Iterator[tuple[int, int]]:
        """The first byte of each run in its fragment, and the byte after its last one."""
        size, step = ELEMENT_BYTES * self.length, ELEMENT_BYTES * self.step
        start = ELEMENT_BYTES * self.start
        return ((first, first + size) for first in range(start, start + self.count * step, step))


def runs_of(
    place: TensorSpec, offsets: Sequence[int], sizes: Sequence[int], *, writes: bool
) -> list[Runs]:
    """The part of one tensor that begins at these offsets and has these sizes, in each dimension;
    C-contiguous, as in a fragment. Empty if a size is 0."""
    if 0 in sizes:
        return []
    strides = [math.prod(place.shape[each + 1 :]) for each in range(len(place.shape))]
    start = place.offset + sum(map(math.prod, zip(offsets, strides, strict=True)))
    left, length = len(sizes), 1
    while left and length == math.prod(place.shape[left:]):
        left -= 1
        length *= sizes[left]
    step, count = length, 1
    if left:
        left -= 1
        step, count = strides[left], sizes[left]
    while left and strides[left - 1] == step * count:
        left -= 1
        count *= sizes[left]
    outer = itertools.product(*map(range, sizes[:left]))
    firsts = (start + sum(map(math.prod, zip(each, strides, strict=False))) for each in outer)
    return [Runs(place.fragment, first, length, step, count, writes) for first in firsts]


def pack_parts(parts: Iterable[Runs]) -> bytes:
    """The parts of one rank as a field of a record."""
    rows = ((x.fragment, x.start, x.length, x.step, x.count, x.writes) for x in parts)
    columns = zip(*rows, strict=True)
    numbers = array("q", itertools.chain.from_iterable(columns))
    if sys.byteorder != "little":
        numbers.byteswap()
    return zlib.compress(numbers.tobytes(), 1)  # Numbers of a column are alike.


def unpack_parts(packed: bytes, fragment_bytes: Sequence[int]) -> tuple[Runs, ...]:
    """The parts of one rank, each within its fragment. Raises LinkError."""
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(packed, PARTS_MAX * _COLUMNS * 8)
    except zlib.error as error:
        raise LinkError(f"undecodable parts of a rank: {error}") from error
    if not unpacker.eof or len(raw) % (_COLUMNS * 8):
        raise LinkError(f"the parts of a rank are not whole, or more than {PARTS_MAX}")
    numbers = array("q", raw)
    if sys.byteorder != "little":
        numbers.byteswap()
    rows = len(numbers) // _COLUMNS
    columns = [numbers[at * rows : (at + 1) * rows] for at in range(_COLUMNS)]
    found = tuple(Runs(*row[:5], writes=bool(row[5])) for row in zip(*columns, strict=True))
    for each in found:
        if not 0 <= each.fragment < len(fragment_bytes):
            raise LinkError(f"{each} is of no fragment")
        size = fragment_bytes[each.fragment] // ELEMENT_BYTES
        fits = each.start >= 0 and 0 < each.length <= each.step <= size and 0 < each.count <= size
        if not fits or each.end > size:
            raise LinkError(f"{each} is not within its fragment of {size} elements")
    return found
