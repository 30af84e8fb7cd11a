"""Payloads of steps, kept by the digest of their bytes: arriving ones and own ones.

Memory is given only for a payload that its sender may send now, for OPEN_MAX of each peer; bytes
that differ from their digest are dropped. Must NOT decide whether a payload counts (the core), nor
look into it.
"""

from collections.abc import Callable, Set
from dataclasses import replace

import xxhash

from peers.connections.frames import Frame
from peers.exchange.interfaces import Bytes
from protocols.interface import StepReceived
from protocols.messages import StepChunk
from protocols.types import CHUNK_BYTES_MAX, PeerId, Stamp

UNDECIDED_MAX = 256
"""Payloads of one peer that the core has not handled yet: a peer that is far behind gets so many at
most in answer to one request."""

OPEN_MAX = 8
"""Payloads of one peer that are under way: one on each connection."""


def digest_of(payload: Bytes) -> str:
    """The digest that names a payload."""
    return xxhash.xxh3_128_hexdigest(payload)


_Name = tuple[int, int, int, PeerId, str]
"""(lineage, view, step, peer, digest of the bytes)."""


class _Arriving:
    """An arriving payload; its pieces come by several connections, in any order."""

    def __init__(self, first: StepChunk) -> None:
        """`first`: the one that came first."""
        self.first = first
        self.buffer = memoryview(bytearray(first.size_bytes))
        self._taken: set[int] = set()
        """Pieces that are being written, or are written: each once, so that hashed bytes cannot
        change."""
        self._here: set[int] = set()
        self._hashed = 0
        """Number of hashed pieces, from the first one on."""
        self._hash = xxhash.xxh3_128()

    def has(self, chunk: StepChunk) -> bool:
        """Is this piece here, or coming by another connection?"""
        return chunk.start_byte // CHUNK_BYTES_MAX in self._taken

    def place(self, chunk: StepChunk, size: int) -> memoryview | None:
        """The memory for this piece; None: drop it."""
        index, rest = divmod(chunk.start_byte, CHUNK_BYTES_MAX)
        piece = self._piece(index)
        if rest or index in self._taken or len(piece) != size:
            return None
        self._taken.add(index)
        return piece

    def arrived(self, chunk: StepChunk) -> bool:
        """The piece is in its place. True if all are."""
        self._here.add(chunk.start_byte // CHUNK_BYTES_MAX)
        while self._hashed in self._here:
            self._hash.update(self._piece(self._hashed))
            self._hashed += 1
        return self._hashed * CHUNK_BYTES_MAX >= self.first.size_bytes

    def _piece(self, index: int) -> memoryview:
        return self.buffer[index * CHUNK_BYTES_MAX : (index + 1) * CHUNK_BYTES_MAX]

    @property
    def is_intact(self) -> bool:
        return self._hash.hexdigest() == self.first.digest


class PayloadStore:
    """The payloads of one peer: its own and those of others."""

    def __init__(
        self, may: Callable[[PeerId, StepChunk], bool], feed: Callable[[StepReceived], None]
    ) -> None:
        """`may`: may this payload, of this size, come from this peer now?"""
        self.held: dict[str, Bytes] = {}
        """By digest, payloads that the core counts, and our own."""
        self.refused = 0
        """Number of payloads that got no memory, broke off, were damaged or unwanted."""
        self._may = may
        self._feed = feed
        self._arriving: dict[PeerId, dict[_Name, _Arriving]] = {}
        self._undecided: dict[PeerId, dict[_Name, Bytes]] = {}

    # The link's side ------------------------------------------------------------------------

    def place(self, peer: PeerId, chunk: StepChunk, size: int) -> memoryview | None:
        """The memory for the next `size` bytes; None: drop them."""
        name, opened = _name(chunk.stamp, chunk.whose, chunk.digest), self._arriving.get(peer)
        if opened is None:
            opened = self._arriving[peer] = {}
        arriving = opened.get(name)
        if arriving is None:
            arriving = self._begin(peer, chunk, opened)
            if arriving is None:
                return None
        if arriving.has(chunk):
            return None  # A second copy: it was requested again while the first one came.
        found = arriving.place(chunk, size)
        if found is None:
            del opened[name]
            self.refused += 1
        return found

    def _begin(
        self, peer: PeerId, chunk: StepChunk, opened: dict[_Name, _Arriving]
    ) -> _Arriving | None:
        crowded = len(self._undecided.get(peer, ())) >= UNDECIDED_MAX
        if crowded or not self._may(peer, chunk):
            self.refused += 1
            return None
        known = self.held.get(chunk.digest)
        if known is not None:
            if chunk.start_byte == 0:  # Of another peer or step, with the same bytes.
                self._tell(peer, chunk, known)
            return None
        if len(opened) >= OPEN_MAX:
            del opened[next(iter(opened))]  # Its rest will never come.
            self.refused += 1
        arriving = opened[_name(chunk.stamp, chunk.whose, chunk.digest)] = _Arriving(chunk)
        return arriving

    def arrived(self, peer: PeerId, chunk: StepChunk) -> None:
        """The piece is in its place."""
        name, opened = _name(chunk.stamp, chunk.whose, chunk.digest), self._arriving.get(peer, {})
        arriving = opened.get(name)
        if arriving is None or not arriving.arrived(chunk):
            return
        del opened[name]
        if arriving.is_intact:
            self._tell(peer, arriving.first, arriving.buffer)
        else:
            self.refused += 1  # Damaged on its way, or forged: as if it had not come.

    def forget(self, peer: PeerId) -> None:
        """The peer is disconnected: incomplete payloads are never used (I2)."""
        self._arriving.pop(peer, None)

    # Decisions of the core --------------------------------------------------------------------

    def decided(self, event: StepReceived, *, wanted: bool) -> None:
        """The core has handled a payload: keep it if it counts, else drop it. Called before the
        core's commands are done, since they may need these bytes."""
        waiting = self._undecided.get(event.sender, {})
        payload = waiting.pop(_name(event.stamp, event.peer, event.digest), None)
        if not waiting:
            self._undecided.pop(event.sender, None)
        if not wanted:
            self.refused += 1
        elif payload is not None:
            self.held.setdefault(event.digest, payload)

    def keep_own(self, digest: str, payload: Bytes) -> None:
        """Keep a payload of our own under its digest."""
        self.held.setdefault(digest, payload)

    def prune(self, named: Set[str]) -> None:
        """Drop all payloads but these."""
        self.held = {digest: held for digest, held in self.held.items() if digest in named}

    def _tell(self, peer: PeerId, chunk: StepChunk, payload: Bytes) -> None:
        name = _name(chunk.stamp, chunk.whose, chunk.digest)
        self._undecided.setdefault(peer, {})[name] = payload
        self._feed(StepReceived(peer, chunk.stamp, chunk.whose, chunk.digest))


def _name(stamp: Stamp, whose: PeerId, digest: str) -> _Name:
    """The name of the payload of a piece."""
    return stamp.lineage, stamp.view, stamp.round, whose, digest


class StepStream:
    """A payload that is being sent to one peer. Implements peers.exchange.outbound.Stream."""

    rank = 0  # Other peers wait for it.
    stamp = None

    def __init__(self, header: StepChunk, payload: Bytes) -> None:
        """`header`: of the first piece."""
        self._header = header
        self._payload = memoryview(payload).cast("B")
        self._next = 0

    def next(self) -> Frame | None:
        start, stop = self._next, min(self._next + CHUNK_BYTES_MAX, len(self._payload))
        self._next = stop
        header = replace(self._header, start_byte=start) if start else self._header
        return header, self._payload[start:stop]

    @property
    def is_complete(self) -> bool:
        return self._next == len(self._payload)

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        del fragment, round_, released  # A step has no round; its bytes do not change.
        return False
