"""Payloads of steps, kept by the digest of their bytes: those that come, and those that go.

Memory is given only for a payload that somebody may send us now, for OPEN_MAX from each, and bytes
that are not what their digest says are dropped. Must NOT decide whether a payload counts
(the core does), nor look into it.
"""

from collections.abc import Callable, Set
from dataclasses import replace

import xxhash

from peers.frames import Frame
from peers.work import Bytes
from protocols.events import StepReceived
from protocols.ids import PeerId
from protocols.limits import CHUNK_BYTES_MAX
from protocols.messages import StepChunk

UNDECIDED_MAX = 256
"""Payloads of one peer that our core has not looked at yet: who is far behind gets this many at
most, in answer to what it asks for at a time."""

OPEN_MAX = 8
"""Payloads of one peer that are under way: one on each connection."""


def digest_of(payload: Bytes) -> str:
    """A payload's name."""
    return xxhash.xxh3_128_hexdigest(payload)


class _Arriving:
    """One payload: its pieces come by several connections, in any order."""

    def __init__(self, first: StepChunk) -> None:
        self.first = first
        self.buffer = memoryview(bytearray(first.size_bytes))
        self._taken: set[int] = set()
        """Pieces that somebody writes, or has written: each once, so that nobody changes what was
        hashed."""
        self._here: set[int] = set()
        self._hashed = 0
        """So many from the first one on."""
        self._hash = xxhash.xxh3_128()

    def place(self, chunk: StepChunk, size: int) -> memoryview | None:
        """Where this piece goes; None: nowhere."""
        index, rest = divmod(chunk.start_byte, CHUNK_BYTES_MAX)
        piece = self._piece(index)
        if rest or index in self._taken or len(piece) != size:
            return None
        self._taken.add(index)
        return piece

    def arrived(self, chunk: StepChunk) -> bool:
        """The piece is at its place. True: all are."""
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


class StepPayloads:
    """Of one peer: its own, and others'."""

    def __init__(
        self, may: Callable[[PeerId, StepChunk], bool], feed: Callable[[StepReceived], None]
    ) -> None:
        """`may`: this payload, of this size, may come from there now."""
        self.held: dict[str, Bytes] = {}
        """What the core counts, and our own."""
        self.refused = 0
        """Payloads that got no memory, broke off, were damaged or were not wanted."""
        self._may = may
        self._feed = feed
        self._arriving: dict[PeerId, dict[StepChunk, _Arriving]] = {}
        """By what is said of each of their pieces."""
        self._undecided: dict[PeerId, dict[StepReceived, Bytes]] = {}

    # The link's side ------------------------------------------------------------------------

    def place(self, peer: PeerId, chunk: StepChunk, size: int) -> memoryview | None:
        """Where the next `size` bytes go; None: nowhere."""
        whole, opened = _whole(chunk), self._arriving.setdefault(peer, {})
        if whole not in opened and not self._begin(peer, chunk, opened):
            return None
        found = opened[whole].place(chunk, size)
        if found is None:
            del opened[whole]
            self.refused += 1
        return found

    def _begin(self, peer: PeerId, chunk: StepChunk, opened: dict[StepChunk, _Arriving]) -> bool:
        crowded = len(self._undecided.get(peer, ())) >= UNDECIDED_MAX
        if crowded or not self._may(peer, chunk):
            self.refused += 1
            return False
        known = self.held.get(chunk.digest)
        if known is not None:
            if chunk.start_byte == 0:  # Another's, or another step's: the same bytes.
                self._tell(peer, chunk, known)
            return False
        if len(opened) >= OPEN_MAX:
            del opened[next(iter(opened))]  # Its rest never comes.
            self.refused += 1
        whole = _whole(chunk)
        opened[whole] = _Arriving(whole)
        return True

    def arrived(self, peer: PeerId, chunk: StepChunk) -> None:
        """The piece is at its place."""
        whole = _whole(chunk)
        arriving = self._arriving.get(peer, {}).get(whole)
        if arriving is None or not arriving.arrived(chunk):
            return
        del self._arriving[peer][whole]
        if arriving.is_intact:
            self._tell(peer, arriving.first, arriving.buffer)
        else:
            self.refused += 1  # Damaged on its way, or a lie: as if it had not come.

    def forget(self, peer: PeerId) -> None:
        """The connections are over: nothing half-received is ever used (I2)."""
        self._arriving.pop(peer, None)

    # What the core makes of it ----------------------------------------------------------------

    def decided(self, event: StepReceived, *, wanted: bool) -> None:
        """The core looked at a payload: keep it if it counts, or drop it. Before the core's
        commands are done: they may need these bytes."""
        waiting = self._undecided.get(event.sender, {})
        payload = waiting.pop(event, None)
        if not waiting:
            self._undecided.pop(event.sender, None)
        if not wanted:
            self.refused += 1
        elif payload is not None:
            self.held.setdefault(event.digest, payload)

    def keep(self, digest: str, payload: Bytes) -> None:
        """Our own, by its name."""
        self.held.setdefault(digest, payload)

    def prune(self, named: Set[str]) -> None:
        """Nobody asks for others any more."""
        self.held = {digest: held for digest, held in self.held.items() if digest in named}

    def _tell(self, peer: PeerId, chunk: StepChunk, payload: Bytes) -> None:
        event = StepReceived(peer, chunk.stamp, chunk.whose, chunk.digest)
        self._undecided.setdefault(peer, {})[event] = payload
        self._feed(event)


def _whole(chunk: StepChunk) -> StepChunk:
    """What is said of its payload in each piece: the first one, mostly this."""
    return replace(chunk, start_byte=0) if chunk.start_byte else chunk


class StepStream:
    """A payload on its way to one peer. Implements peers.outbound.Stream."""

    rank = 0  # Others wait for it.

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
    def over(self) -> bool:
        return self._next == len(self._payload)

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        del fragment, round_, released  # A step has no round; its bytes stay as they are.
        return False
