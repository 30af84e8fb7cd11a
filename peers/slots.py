"""One memfd that a node's daemon and its ranks share: whole fragments, counters and done flags.

A fragment is all its parameters in the order of `named_parameters()`, unsharded, C-contiguous,
fp32 little-endian, densely packed; every rank writes its own shard straight into its place. A
writer invalidates a slot's word before the first byte and sets it after the last one, so a torn
slot is told from a whole one. No fence is needed: each flag is followed by a message (a system
call on both sides) before the other process looks. Must NOT interpret the bytes, wait for
anybody, or send anything.
"""

import contextlib
import fcntl
import mmap
import os
import zlib
from dataclasses import dataclass
from typing import Literal

from protocols.errors import LowcommError

MAGIC = int.from_bytes(b"LCSLOTS\x01", "little")  # The last byte is the version of this layout.
LINE_BYTES = 64  # One cache line for each word that a rank writes often: no false sharing.
SLOTS = 2  # Of each kind and fragment: one is being written while the other is being read.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # A mapped file that shrinks is a SIGBUS.

Kind = Literal["contribution", "result"]


class SlotsError(LowcommError):
    """The shared memory is not what its reader expects: wrong size, wrong magic, or torn."""


@dataclass(frozen=True, slots=True)
class SlotsShape:
    """What both sides must agree on before they map the same bytes."""

    ranks: int
    fragment_bytes: tuple[int, ...]
    """Size of each whole fragment; multiples of 4 (fp32)."""
    copies: int = SLOTS
    """Slots of each kind and fragment."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or not self.fragment_bytes or self.copies < 1:
            raise SlotsError(f"needs at least one rank and one fragment, got {self}")
        if any(size <= 0 or size % 4 for size in self.fragment_bytes):
            raise SlotsError(f"fragment sizes must be positive multiples of 4, got {self}")

    @property
    def digest(self) -> int:
        """Tells shapes of the same total size apart."""
        return zlib.crc32(repr((self.ranks, self.fragment_bytes, self.copies)).encode())

    @property
    def group_bytes(self) -> int:
        """A slot's words: one line for its generation, then the ranks' done flags."""
        return LINE_BYTES + _round_up(8 * self.ranks, LINE_BYTES)

    @property
    def header_bytes(self) -> int:
        """Magic line, one step counter line a rank, then all word groups; whole pages."""
        groups = len(self.fragment_bytes) * 2 * self.copies
        lines = LINE_BYTES * (1 + self.ranks) + groups * self.group_bytes
        return _round_up(lines, mmap.PAGESIZE)

    @property
    def total_bytes(self) -> int:
        """Size of the memfd: the header, and each fragment's contribution and result slots."""
        data = sum(_round_up(size, mmap.PAGESIZE) for size in self.fragment_bytes)
        return self.header_bytes + 2 * self.copies * data


class Slots:
    """A mapped memfd. The daemon creates it, ranks attach to it; use `close()` on both sides."""

    def __init__(self, fd: int, *, shape: SlotsShape) -> None:
        """Map `fd`, which this object owns from now on. Call `create` or `attach` instead."""
        self.fd = fd
        self.shape = shape
        self._map = mmap.mmap(fd, shape.total_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._view = memoryview(self._map)
        # An aligned 8-byte item of a cast view is stored by one instruction: never half a word.
        self._words = self._view[: shape.header_bytes].cast("Q")
        starts: list[int] = []
        position = shape.header_bytes
        for size in shape.fragment_bytes:
            starts.append(position)
            position += 2 * shape.copies * _round_up(size, mmap.PAGESIZE)
        self._starts = tuple(starts)

    @classmethod
    def create(cls, shape: SlotsShape) -> "Slots":
        """Make the memfd with all pages present (a first touch costs ten times a copy).

        Raises OSError when the system refuses the memory.
        """
        fd = os.memfd_create("lowcomm-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, shape.total_bytes)
            os.posix_fallocate(fd, 0, shape.total_bytes)  # Reports what is refused; a touch kills.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            slots = cls(fd, shape=shape)
        except BaseException:
            os.close(fd)
            raise
        slots._words[0] = MAGIC
        slots._words[1] = shape.digest
        return slots

    @classmethod
    def attach(cls, fd: int, shape: SlotsShape) -> "Slots":
        """Map the daemon's memfd; `fd` belongs to the result, or is closed when this raises.

        Raises SlotsError if it is not a sealed memfd of exactly this shape.
        """
        try:
            _check_file(fd, shape)
            slots = cls(fd, shape=shape)
        except BaseException:
            os.close(fd)
            raise
        magic, digest = slots._words[:2]
        if (magic, digest) != (MAGIC, shape.digest):
            slots.close()
            raise SlotsError(f"shared memory has the header {magic:x} {digest:x}, not of {shape}")
        return slots

    def contribution(self, fragment: int, generation: int) -> memoryview:
        """The whole fragment, uint8 [fragment_bytes], writable."""
        return self._data("contribution", fragment, generation)

    def result(self, fragment: int, generation: int) -> memoryview:
        """The whole fragment, uint8 [fragment_bytes], writable."""
        return self._data("result", fragment, generation)

    def set_done(self, kind: Kind, fragment: int, generation: int, rank: int) -> None:
        """This rank has written its shard (contribution) or read it (result)."""
        self._words[self._done(kind, fragment, generation, rank)] = generation

    def clear_done(self, kind: Kind, fragment: int, generation: int, rank: int) -> None:
        """This rank begins to write (contribution) or read (result) the slot again."""
        self._words[self._done(kind, fragment, generation, rank)] = 0

    def all_done(self, kind: Kind, fragment: int, generation: int) -> bool:
        """True when every rank is done with exactly this generation."""
        first = self._done(kind, fragment, generation, 0)
        return all(word == generation for word in self._words[first : first + self.shape.ranks])

    def begin_result(self, fragment: int, generation: int) -> None:
        """Before the first byte: whoever still reads the slot's last result finds it torn."""
        self._words[self._group("result", fragment, generation)] = 0

    def publish_result(self, fragment: int, generation: int) -> None:
        """After the last byte."""
        self._words[self._group("result", fragment, generation)] = generation

    def result_generation(self, fragment: int, generation: int) -> int:
        """What the slot of `generation` holds now: check it before and after reading."""
        return self._words[self._group("result", fragment, generation)]

    def count_step(self, rank: int, step: int) -> None:
        """A rank's sign of life, for the daemon's watch; one store."""
        self._words[LINE_BYTES // 8 * (1 + rank)] = step

    def step(self, rank: int) -> int:
        """The last step that this rank counted, 0 at the start of an attempt."""
        return self._words[LINE_BYTES // 8 * (1 + rank)]

    def void(self) -> None:
        """A new attempt of the ranks: no done flag and no step of the dead one counts any more.

        Call it when no rank runs. Published results and the bytes of contributions stay.
        """
        for rank in range(self.shape.ranks):
            self.count_step(rank, 0)
        for fragment in range(len(self.shape.fragment_bytes)):
            for generation in range(self.shape.copies):
                for rank in range(self.shape.ranks):
                    self.clear_done("contribution", fragment, generation, rank)
                    self.clear_done("result", fragment, generation, rank)

    def close(self) -> None:
        """Close the descriptor and unmap; idempotent.

        While somebody still holds a view, the mapping lasts until the last view is gone.
        """
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self._words.release()
        self._view.release()
        with contextlib.suppress(BufferError):
            self._map.close()

    def _group(self, kind: Kind, fragment: int, generation: int) -> int:
        """Index of the slot's generation word."""
        assert 0 <= fragment < len(self.shape.fragment_bytes), f"no fragment {fragment}"
        index = 2 * fragment + (kind == "result")
        index = index * self.shape.copies + generation % self.shape.copies
        return (LINE_BYTES * (1 + self.shape.ranks) + index * self.shape.group_bytes) // 8

    def _done(self, kind: Kind, fragment: int, generation: int, rank: int) -> int:
        """Index of a rank's done word."""
        assert 0 <= rank < self.shape.ranks, f"no rank {rank}"
        return self._group(kind, fragment, generation) + LINE_BYTES // 8 + rank

    def _data(self, kind: Kind, fragment: int, generation: int) -> memoryview:
        assert 0 <= fragment < len(self.shape.fragment_bytes), f"no fragment {fragment}"
        size = self.shape.fragment_bytes[fragment]
        copies = self.shape.copies
        place = copies * (kind == "result") + generation % copies
        start = self._starts[fragment] + place * _round_up(size, mmap.PAGESIZE)
        return self._view[start : start + size]


def _check_file(fd: int, shape: SlotsShape) -> None:
    """Only a file that can no longer change its size is safe to map."""
    size = os.fstat(fd).st_size
    if size != shape.total_bytes:
        raise SlotsError(f"shared memory has {size} bytes, {shape} needs {shape.total_bytes}")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise SlotsError("shared memory is not a memfd") from error
    if seals & SEALS != SEALS:
        raise SlotsError("shared memory is not sealed against a change of its size")


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
