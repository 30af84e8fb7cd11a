"""Payloads in pieces: which pieces are here, and where the others belong.

A payload's elements are divided into pieces, and encoding, sending, summing and digests go piece by
piece, so that no step waits for a whole payload. A payload has one layer of encoded elements, or
several (the slices of a gather, side by side); a chunk, the unit that travels, is one layer of a
piece. Must NOT know where pieces come from or go to, nor look into them.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import xxhash

from peers.exchange.interfaces import Bytes, RoundWork
from peers.sockets.memory_pages import fresh
from protocols.types import Contributor

PIECE_ELEMENTS = 1 << 18
"""Elements of a piece, 1 MiB of fp32: it fits the L2 cache and takes a millisecond of arithmetic at
most. Every codec's grain divides it."""
MAPPED_BYTES_MIN = 1 << 20
"""Bytes from which on a buffer is mapped from the system."""
FREE_BYTES_MAX = 1 << 32
"""Bytes of free buffers that are kept for the next round."""
IDLE_ROUNDS = 2
"""Rounds of each fragment after which an unused size is freed: it is that of parts among another
number of peers, and may never be needed again."""
IDLE_BYTES_PER_S = 1e8
"""Free buffers are given back to the system once they were idle for so long that the next exchange,
which needs fresh pages then, takes at most a twentieth of that time longer (2 GB/s are a low
estimate). In most runs ranks train for minutes meanwhile, and need the memory."""
SizeOf = Callable[[int], int]
"""A function from elements to encoded bytes."""


def spans(elements: int) -> Iterator[tuple[int, int]]:
    """The [start, stop) of each piece of so many elements."""
    return (
        (start, min(start + PIECE_ELEMENTS, elements))
        for start in range(0, elements, PIECE_ELEMENTS)
    )


class Pool:
    """Buffers of finished payloads, for reuse: fresh pages cost more than a copy."""

    def __init__(self) -> None:
        self._free: dict[int, list[memoryview]] = {}
        self._asked: dict[int, int] = {}
        """By size, the round in which it was asked for last."""
        self._rounds = 0
        self._bytes = 0
        self._idle: asyncio.TimerHandle | None = None
        """Gives all free buffers back."""

    def take(self, size: int) -> memoryview:
        """A buffer of exactly `size` bytes with undefined content."""
        if self._idle is not None:
            self._idle.cancel()
        self._asked[size] = self._rounds
        if free := self._free.get(size):
            self._bytes -= size
            return free.pop()
        if size < MAPPED_BYTES_MIN:
            return memoryview(bytearray(size))
        return fresh(size)

    def give(self, buffer: memoryview) -> None:
        """Give a buffer back. Nothing writes to it any more; a payload that is still being sent
        from it is not needed."""
        size = buffer.nbytes
        if size in self._asked and self._bytes + size <= FREE_BYTES_MAX:
            self._bytes += size
            self._free.setdefault(size, []).append(buffer)

    def round_over(self, fragments: int) -> None:
        """A round of one of `fragments` fragments is over: free buffers of unused sizes now, and
        all others if no payload needs one soon."""
        self._rounds += 1
        oldest = self._rounds - IDLE_ROUNDS * fragments
        for size in [size for size, asked in self._asked.items() if asked < oldest]:
            del self._asked[size]
            self._bytes -= size * len(self._free.pop(size, ()))
        if self._idle is not None:
            self._idle.cancel()
        delay_s = self._bytes / IDLE_BYTES_PER_S
        self._idle = asyncio.get_running_loop().call_later(delay_s, self._give_back)

    def _give_back(self) -> None:
        self._free.clear()
        self._bytes = 0


class Payload:
    """A slice or a result that arrives, or is made, chunk by chunk in any order."""

    def __init__(
        self, elements: int, size_of: SizeOf, buffer: memoryview, *, layers: int = 1
    ) -> None:
        """`size_of`: for one layer; `buffer`: for all layers, piece after piece."""
        self.elements = elements
        self.layers = layers
        self.buffer = buffer
        marks = [*(size_of(start) for start, _ in spans(elements)), size_of(elements)]
        assert buffer.nbytes == layers * marks[-1], "a buffer of another size"
        places = [(a, b - a, layer) for a, b in pairwise(marks) for layer in range(layers)]
        self._borders = [layers * a + layer * size for a, size, layer in places] + [buffer.nbytes]
        self._digests = [b""] * len(places)
        self.missing = len(self._digests)
        """Number of missing chunks."""
        self.terms: tuple[Contributor, ...] = ()
        """Contributors of a result."""
        self.own: int | None = None
        """The layer that is not sent to us, since we have it ourselves."""
        self.life = 0
        """Incarnation of the sender of a slice."""

    def __len__(self) -> int:
        """The number of chunks; they are those of the first piece, of the second, ..."""
        return len(self._digests)

    def has(self, index: int) -> bool:
        return bool(self._digests[index])

    def chunk(self, index: int) -> memoryview:
        return self.buffer[self._borders[index] : self._borders[index + 1]]

    def has_piece(self, number: int) -> bool:
        """Is this piece here in all layers?"""
        return all(self._digests[number * self.layers : (number + 1) * self.layers])

    def lacks_own(self, number: int) -> bool:
        """Is this piece complete but for our own layer?"""
        lacking = [x for x in range(self.layers) if not self.has(number * self.layers + x)]
        return lacking == [self.own]

    def piece(self, number: int) -> memoryview:
        """The bytes of all layers of a piece, in order."""
        first = number * self.layers
        return self.buffer[self._borders[first] : self._borders[first + self.layers]]

    def at(self, start: int, layer: int = 0) -> int | None:
        """Index of the chunk that begins at this element; None if there is none."""
        number, rest = divmod(start, PIECE_ELEMENTS)
        index = number * self.layers + layer
        fits = not rest and 0 <= layer < self.layers and 0 <= index < len(self)
        return index if fits else None

    def index_of(self, start: int, size: int, layer: int = 0) -> int | None:
        """Index of the chunk that begins at this element and has so many bytes; None if there is
        none."""
        index = self.at(start, layer)
        return index if index is not None and self.chunk(index).nbytes == size else None

    def add(self, index: int, digest: bytes) -> None:
        """The chunk is in its place."""
        if not self._digests[index]:
            self._digests[index] = digest
            self.missing -= 1

    def add_piece(self, number: int) -> None:
        """All layers of a piece are in their places."""
        for index in range(number * self.layers, (number + 1) * self.layers):
            self.add(index, digest_of(self.chunk(index)))

    def add_own(self, number: int, piece: Bytes) -> None:
        """Copy our own layer of a piece into its place."""
        assert self.own is not None
        index = number * self.layers + self.own
        self.chunk(index)[:] = piece
        self.add(index, digest_of(piece))

    def digest_of(self, index: int) -> bytes:
        return self._digests[index]

    @property
    def digest(self) -> str:
        """Digest of a complete payload over its chunks' digests, 32 hex digits."""
        assert not self.missing, "it is not whole"
        return xxhash.xxh3_128_hexdigest(b"".join(self._digests))


def digest_of(chunk: Bytes) -> bytes:
    """The digest of one chunk, 16 bytes."""
    return xxhash.xxh3_128_digest(chunk)


class Encoding:
    """Our contribution to a round: each piece is encoded once, when it is first needed."""

    def __init__(
        self, work: RoundWork, fragment: int, elements: int, pool: Pool, *, manifest: str = ""
    ) -> None:
        """The ranks' parameters must not change until `release`."""
        place = work.begin_contribution(fragment, manifest)
        self.manifest = manifest
        self._work = work
        self._fragment = fragment
        self._size_of = partial(work.contribution_bytes, fragment)
        self._spans = list(spans(elements))
        self._starts = [start for start, _ in self._spans]
        self._made = bytearray(len(self._spans))
        self._pool = None if place is not None else pool
        self._buffer = place if place is not None else pool.take(self._size_of(elements))

    def release(self) -> None:
        """The contribution is not needed any more: give its buffer back."""
        if self._pool is not None:
            self._pool.give(self._buffer)

    def cut(self, start: int, stop: int) -> memoryview:
        """The encoded bytes of elements [start, stop)."""
        first = max(bisect_left(self._starts, start + 1) - 1, 0)
        for index in range(first, len(self._spans)):
            if self._spans[index][0] >= stop:
                break
            if not self._made[index]:
                self._make(index)
        return self._buffer[self._size_of(start) : self._size_of(stop)]

    def _make(self, index: int) -> None:
        start, stop = self._spans[index]
        out = self._buffer[self._size_of(start) : self._size_of(stop)]
        self._work.encode(self._fragment, start, stop, out)
        self._made[index] = 1
