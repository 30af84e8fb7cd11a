"""One file that a node's daemon and its ranks share: whole fragments, counters and done flags.

It is a memfd, or a file on a disk that has no name.

A fragment is all its parameters in the order of `named_parameters()`, unsharded, C-contiguous, fp32
little-endian, densely packed; every rank writes its own shard straight into its place. A writer
invalidates a slot's word before the first byte and sets it after the last one, so a torn slot is
told from a whole one. No fence is needed: each flag is followed by a message (a system call on both
sides) before the other process looks. Must NOT interpret the bytes, wait, or send anything.
"""

import contextlib
import fcntl
import mmap
import os
import stat
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.sockets import unnamed_file
from protocols.types import LowcommError

MAGIC = int.from_bytes(b"LCSLOTS\x04", "little")  # The last byte is the version of this layout.
LINE_BYTES = 64  # One cache line for each word that a rank writes often: no false sharing.
COPIES = 2  # Places of a result: one is written while the other is read.
MOVE = COPIES  # The place of a result as a difference: seldom used, no memory until then.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # Access to a mapped file that shrank is a SIGBUS.


class SlotsError(LowcommError):
    """The shared memory is not what its reader expects: wrong size, wrong magic, or torn."""


@dataclass(frozen=True, slots=True)
class SlotsShape:
    """What both sides must agree on before they map the same bytes."""

    ranks: int
    fragment_bytes: tuple[int, ...]
    """Size of each whole fragment; multiples of 4 (fp32)."""
    copies: int = COPIES
    """Of each result."""
    is_lasting: bool = True
    """Contributions and results have memory from the beginning to the end. If not, a contribution
    has it from its first byte until `forget_contribution`, a result from `begin_result` until
    `forget_result`; the first copies of results have it from the beginning."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or not self.fragment_bytes or self.copies < 1:
            raise SlotsError(f"needs at least one rank and one fragment, got {self}")
        if any(size <= 0 or size % 4 for size in self.fragment_bytes):
            raise SlotsError(f"fragment sizes must be positive multiples of 4, got {self}")

    @property
    def digest(self) -> int:
        """Tells shapes of the same total size apart."""
        agreed = (self.ranks, self.fragment_bytes, self.copies, self.is_lasting)
        return zlib.crc32(repr(agreed).encode())

    @property
    def flags_bytes(self) -> int:
        """The ranks' done flags of a fragment's contribution."""
        return _round_up(8 * self.ranks, LINE_BYTES)

    @property
    def words_bytes(self) -> int:
        """Of a fragment: done flags of its contribution, generations of its results."""
        return self.flags_bytes + (MOVE + 1) * LINE_BYTES

    @property
    def header_bytes(self) -> int:
        """Magic line, one step counter line a rank, the fragments' words; whole pages."""
        lines = LINE_BYTES * (1 + self.ranks) + len(self.fragment_bytes) * self.words_bytes
        return _round_up(lines, mmap.PAGESIZE)

    @property
    def model_bytes(self) -> int:
        """All fragments once, each in whole pages."""
        return sum(_round_up(size, mmap.PAGESIZE) for size in self.fragment_bytes)

    @property
    def present_bytes(self) -> int:
        """Header, contributions, results: what has memory from the beginning where all lasts."""
        return self.header_bytes + (1 + self.copies) * self.model_bytes

    @property
    def moves_bytes(self) -> int:
        """A single copy is not made beside another one: there is nothing that it moved by."""
        return self.model_bytes if self.copies == COPIES else 0

    @property
    def total_bytes(self) -> int:
        """Size of the memfd: that, contributions at their second place, what results moved by."""
        return self.present_bytes + self.model_bytes + self.moves_bytes

    def result_offset(self, place: int) -> int:
        """Where in the file results begin of which each is in this place."""
        if place == MOVE:
            return self.total_bytes - self.moves_bytes
        return self.header_bytes + (1 + place) * self.model_bytes

    def contribution_offset(self, place: int) -> int:
        """Where in the file contributions begin of which each is in this place."""
        return self.present_bytes if place else self.header_bytes


class SlotMemory:
    """Gives memory to slots that were made without it, and takes it back."""

    def __init__(self, fd: int, maps: Sequence[mmap.mmap]) -> None:
        """`maps`: of the whole file, in order."""
        self._fd = fd
        self._maps = maps
        self._given: set[int] = set()
        """Where in the file there is memory now that was not there at first."""

    def give(self, start: int, size: int) -> None:
        """To the slot that begins there in the file. Raises SlotsError when the system refuses."""
        if start in self._given:
            return
        try:
            os.posix_fallocate(self._fd, start, size)  # It reports what is refused; a touch kills.
        except OSError as error:
            raise SlotsError(
                f"the system gives no {size >> 20} MiB more to share with the ranks: {error}"
            ) from error
        self._given.add(start)

    def take_slot(self, start: int, size: int) -> None:
        """From the slot that begins there in the file."""
        self._given.discard(start)
        at = 0
        for mapped in self._maps:
            if start < at + len(mapped):
                mapped.madvise(mmap.MADV_REMOVE, start - at, _round_up(size, mmap.PAGESIZE))
                return
            at += len(mapped)


class Slots:
    """The mapped file. The daemon creates it, ranks attach to it; use `close()` on both sides."""

    def __init__(self, fd: int, *, shape: SlotsShape, writes_results: bool) -> None:
        """Map `fd`, which this object owns from now on. Call `create` or `attach` instead."""
        self.fd = fd
        self.shape = shape
        # A lone rank touches all that lasts now (a first touch costs ten times a copy). One of
        # several would count parts of others as its own memory. The daemon does so piece by piece,
        # as it writes there: all at once would hold up whatever else it does. On a disk the kernel
        # may need the pages for other things.
        both, present = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
        is_alone = not writes_results and shape.ranks == 1
        if is_alone and shape.is_lasting and is_memory(fd):
            present |= mmap.MAP_POPULATE
        # A program that writes past its own arrays does not hit what the daemon goes on with.
        theirs = both if writes_results else mmap.PROT_READ
        self._maps: list[mmap.mmap] = []
        self._views: list[memoryview] = []

        def view(size: int, prot: int, flags: int) -> memoryview:
            """Of the next so many bytes of the file."""
            start = sum(map(len, self._maps))
            self._maps.append(mmap.mmap(fd, size, flags, prot, offset=start))
            self._views.append(memoryview(self._maps[-1]))
            return self._views[-1]

        size = shape.model_bytes
        self._contributions = view(shape.header_bytes + size, both, present)
        self._results = view(shape.copies * size, theirs, present)
        self._elsewhere = view(size, both, mmap.MAP_SHARED)
        self._moves = view(size, theirs, mmap.MAP_SHARED) if shape.moves_bytes else self._results
        # An aligned 8-byte item of a cast view is stored by one instruction: never half a word.
        self._words = self._contributions[: shape.header_bytes].cast("Q")
        self._starts: list[int] = []
        """Of each fragment in all of them."""
        position = 0
        for size in shape.fragment_bytes:
            self._starts.append(position)
            position += _round_up(size, mmap.PAGESIZE)
        self.places = [0] * len(shape.fragment_bytes)
        """By fragment, the place (of two) to which its ranks contribute. The second place has no
        memory until it is needed."""
        self._memory = SlotMemory(fd, self._maps)

    @classmethod
    def create(cls, shape: SlotsShape, directory: Path | None = None) -> "Slots":
        """Make the memfd with all its memory, or, with a directory, a file there with all its
        blocks; in a thread of its own, if it is much.

        Raises OSError when the system refuses the memory, or the disk the blocks.
        """
        fd = _memfd(shape) if directory is None else unnamed_file(directory, shape.total_bytes)
        try:
            slots = cls(fd, shape=shape, writes_results=True)
        except BaseException:
            os.close(fd)
            raise
        slots._words[0] = MAGIC
        slots._words[1] = shape.digest
        return slots

    @classmethod
    def attach(cls, fd: int, shape: SlotsShape) -> "Slots":
        """Map the daemon's file; `fd` belongs to the result, or is closed when this raises.

        Raises SlotsError if it is neither a sealed memfd nor an unnamed file of exactly this shape.
        """
        try:
            _check_file(fd, shape)
            slots = cls(fd, shape=shape, writes_results=False)
        except BaseException:
            os.close(fd)
            raise
        magic, digest = slots._words[:2]
        if (magic, digest) != (MAGIC, shape.digest):
            slots.close()
            raise SlotsError(f"shared memory has the header {magic:x} {digest:x}, not of {shape}")
        return slots

    def contribution(self, fragment: int) -> memoryview:
        """The whole fragment, uint8 [fragment_bytes], writable, where the ranks write it now."""
        start, size = self._starts[fragment], self.shape.fragment_bytes[fragment]
        if self.places[fragment]:
            return self._elsewhere[start : start + size]
        start += self.shape.header_bytes
        return self._contributions[start : start + size]

    def contribute_elsewhere(self, fragment: int) -> None:
        """The next ranks write to the other place: the contribution of the last ones is still
        needed.

        Raises SlotsError when the system refuses the memory.
        """
        self.places[fragment] = 1 - self.places[fragment]
        self._give(fragment, self.shape.contribution_offset(1))

    def result(self, fragment: int, place: int) -> memoryview:
        """The whole fragment, uint8 [fragment_bytes], in this place (MOVE: what it moved by);
        read-only for a rank."""
        start, size = self._starts[fragment], self.shape.fragment_bytes[fragment]
        if place == MOVE:
            return self._moves[start : start + size]
        assert 0 <= place < self.shape.copies, f"no place {place}"
        start += place * self.shape.model_bytes
        return self._results[start : start + size]

    def set_done(self, fragment: int, generation: int, rank: int) -> None:
        """This rank has written its shard of the contribution."""
        self._words[self._done(fragment, rank)] = generation

    def clear_done(self, fragment: int, rank: int) -> None:
        """This rank begins to write to the contribution's slot again."""
        self._words[self._done(fragment, rank)] = 0

    def all_done(
        self, fragment: int, generation: int, *, ranks: Sequence[int] | None = None
    ) -> bool:
        """True when every rank, or each of `ranks`, is done with exactly this generation."""
        first = self._done(fragment, 0)
        asked = range(self.shape.ranks) if ranks is None else ranks
        return all(self._words[first + rank] == generation for rank in asked)

    def begin_result(self, fragment: int, place: int) -> None:
        """Call this before the first byte: a rank that still reads the old content finds it torn.

        Raises SlotsError when the system refuses memory that the place has not.
        """
        self._words[self._generation(fragment, place)] = 0
        self.give_memory(fragment, place)

    def give_memory(self, fragment: int, place: int) -> None:
        """A result is to be written there: in any thread, with time for its zeros.

        Raises SlotsError when the system refuses the memory.
        """
        if (place == MOVE or not self.shape.is_lasting) and self.fd >= 0:
            self._give(fragment, self.shape.result_offset(place))

    def forget_result(self, fragment: int, place: int) -> None:
        """No rank reads there any more: give the memory back, unless all of it lasts."""
        if self.shape.is_lasting or self.fd < 0:
            return
        self._words[self._generation(fragment, place)] = 0
        self._take_fragment(fragment, self.shape.result_offset(place))

    def expect_contribution(self, fragment: int) -> None:
        """The ranks will write there: take memory now, so that they need not wait for its zeros.

        Raises SlotsError when the system refuses the memory.
        """
        if not self.shape.is_lasting and self.fd >= 0:
            self._give(fragment, self.shape.contribution_offset(self.places[fragment]))

    def forget_contribution(self, fragment: int, place: int) -> None:
        """The contribution in this place is not needed any more, and ranks do not write there until
        they are told to: give the memory back, unless all of it lasts."""
        if not self.shape.is_lasting and self.fd >= 0:
            self._take_fragment(fragment, self.shape.contribution_offset(place))

    def publish_result(self, fragment: int, place: int, generation: int) -> None:
        """After the last byte."""
        self._words[self._generation(fragment, place)] = generation

    def result_generation(self, fragment: int, place: int) -> int:
        """The generation of the result in this place; check it before and after reading. 0: no
        complete result."""
        return self._words[self._generation(fragment, place)]

    def count_step(self, rank: int, step: int) -> None:
        """A rank's sign of life, for the daemon's watch; one store."""
        self._words[LINE_BYTES // 8 * (1 + rank)] = step

    def step_of_rank(self, rank: int) -> int:
        """The last step that this rank counted, 0 at the start of an attempt."""
        return self._words[LINE_BYTES // 8 * (1 + rank)]

    def void(self) -> None:
        """A new attempt of the ranks: no done flag and no step of the dead one counts any more.

        Call it when no rank runs. Published results and the bytes of contributions stay.
        """
        for rank in range(self.shape.ranks):
            self.count_step(rank, 0)
        for fragment in range(len(self.shape.fragment_bytes)):
            for rank in range(self.shape.ranks):
                self.clear_done(fragment, rank)

    def close(self) -> None:
        """Close the descriptor and unmap; idempotent.

        The mapping lasts until the last view of it is gone.
        """
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        for view in (self._words, *self._views):
            view.release()
        for mapped in self._maps:
            with contextlib.suppress(BufferError):
                mapped.close()

    def _give(self, fragment: int, first: int) -> None:
        """To a fragment among those that begin there in the file."""
        self._memory.give(first + self._starts[fragment], self.shape.fragment_bytes[fragment])

    def _take_fragment(self, fragment: int, first: int) -> None:
        """From a fragment among those that begin there in the file."""
        self._memory.take_slot(first + self._starts[fragment], self.shape.fragment_bytes[fragment])

    def _flags(self, fragment: int) -> int:
        """Offset of the fragment's words."""
        assert 0 <= fragment < len(self.shape.fragment_bytes), f"no fragment {fragment}"
        return LINE_BYTES * (1 + self.shape.ranks) + fragment * self.shape.words_bytes

    def _done(self, fragment: int, rank: int) -> int:
        """Index of a rank's done word."""
        assert 0 <= rank < self.shape.ranks, f"no rank {rank}"
        return self._flags(fragment) // 8 + rank

    def _generation(self, fragment: int, place: int) -> int:
        """Index of the word that says what a result's place holds."""
        assert 0 <= place <= MOVE, f"no place {place}"
        lines = self._flags(fragment) + self.shape.flags_bytes
        return (lines + place * LINE_BYTES) // 8


def is_memory(fd: int) -> bool:
    """Whether the file is a memfd that takes seals; no other file does, be it in a tmpfs."""
    try:
        return not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL
    except OSError:
        return False


def _memfd(shape: SlotsShape) -> int:
    """A memfd with the memory that it has from the beginning. Raises OSError."""
    fd = os.memfd_create("lowcomm-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, shape.total_bytes)
        # It reports what is refused; a touch kills.
        if shape.is_lasting:
            os.posix_fallocate(fd, 0, shape.present_bytes)
        else:
            os.posix_fallocate(fd, 0, shape.header_bytes)
            os.posix_fallocate(fd, shape.header_bytes + shape.model_bytes, shape.model_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_file(fd: int, shape: SlotsShape) -> None:
    """Check the file: only one of a size that no other program can change is safe to map."""
    file = os.fstat(fd)
    if file.st_size != shape.total_bytes:
        raise SlotsError(
            f"shared memory has {file.st_size} bytes, {shape} needs {shape.total_bytes}"
        )
    if not is_memory(fd):
        # Without a name, only this node's own processes can reach it.
        if file.st_nlink or not stat.S_ISREG(file.st_mode):
            raise SlotsError("shared memory is neither a memfd nor a file without a name")
    elif fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise SlotsError("shared memory is not sealed against a change of its size")


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
