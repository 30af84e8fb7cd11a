"""Bulk bytes between the links and the work: chunks become slices, results and states.

What may arrive is bounded by what the run's parts can be; what nobody expects gets no memory.
Must NOT decide whether a payload counts (the core does) nor look into it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from peers.link import Frame
from peers.work import Bytes
from protocols.ids import PeerId, Stamp
from protocols.messages import Chunk
from protocols.wire import CHUNK_BYTES_MAX

ASSEMBLIES_PER_PEER_MAX = 64
"""Payloads of one peer that are incomplete at one time: connections are in order, so one, but a
peer may be replaced in the middle."""

SliceKey = tuple[int, int, int, int, PeerId]
"""(fragment, round, view, part, contributor): not the attempt."""
ResultKey = tuple[Stamp, int]
StateKey = tuple[int, int]
"""(cut index, fragment)."""


def chunks(header: Chunk, payload: Bytes) -> Iterator[Frame]:
    """The frames of one payload; `header`'s extent is filled in."""
    view = memoryview(payload).cast("B")
    for offset in range(0, view.nbytes, CHUNK_BYTES_MAX):
        part = view[offset : offset + CHUNK_BYTES_MAX]
        yield replace(header, offset_bytes=offset, total_bytes=view.nbytes), part


@dataclass(slots=True)
class Assembly:
    """A payload of which some chunks are here."""

    buffer: bytearray
    received: int = 0


class Assembler:
    """Puts chunks together, per sender."""

    def __init__(self, size_max: Callable[[Chunk], int]) -> None:
        """`size_max` says how many bytes the whole payload may have; 0: nobody expects it."""
        self._size_max = size_max
        self._open: dict[PeerId, dict[Chunk, Assembly]] = {}
        self.refused = 0
        """Chunks that got no memory."""

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None:
        """Where the next `size` bytes go."""
        mine = self._open.setdefault(peer, {})
        key = replace(chunk, offset_bytes=0)
        assembly = mine.get(key)
        if assembly is None:
            fits = 0 < chunk.total_bytes <= self._size_max(chunk)
            if chunk.offset_bytes or not fits or len(mine) >= ASSEMBLIES_PER_PEER_MAX:
                self.refused += 1
                return None
            assembly = mine[key] = Assembly(bytearray(chunk.total_bytes))
        end = chunk.offset_bytes + size
        if chunk.offset_bytes != assembly.received or end > len(assembly.buffer):
            self.refused += 1
            return None
        return memoryview(assembly.buffer)[chunk.offset_bytes : end]

    def received(self, peer: PeerId, chunk: Chunk) -> bytearray | None:
        """The chunk is at its place; the whole payload if it was the last one."""
        key = replace(chunk, offset_bytes=0)
        assembly = self._open.get(peer, {}).get(key)
        if assembly is None:
            return None
        assembly.received = min(chunk.offset_bytes + CHUNK_BYTES_MAX, len(assembly.buffer))
        if assembly.received < len(assembly.buffer):
            return None
        del self._open[peer][key]
        return assembly.buffer

    def forget(self, peer: PeerId) -> None:
        """The connection is over: nothing half-received is ever used (I2)."""
        self._open.pop(peer, None)


class PayloadStore:
    """Whole payloads, until the core says that nobody needs them."""

    def __init__(self) -> None:
        self.encoded: dict[tuple[int, int], Bytes] = {}
        """Our own contributions, by (fragment, round)."""
        self.slices: dict[SliceKey, Bytes] = {}
        self.results: dict[ResultKey, Bytes] = {}
        self.states: dict[StateKey, Bytes] = {}

    @staticmethod
    def slice_key(stamp: Stamp, part: int, peer: PeerId) -> SliceKey:
        return (stamp.fragment, stamp.round, stamp.view, part, peer)

    def drop_slices(self, fragment: int, round_: int) -> None:
        """Contributions to this round and before; ours stay until the round is released."""
        for key in [k for k in self.slices if k[0] == fragment and k[1] <= round_]:
            del self.slices[key]

    def release(self, fragment: int, round_: int) -> None:
        """Everything of this round and before."""
        self.drop_slices(fragment, round_)
        for key in [k for k in self.encoded if k[0] == fragment and k[1] <= round_]:
            del self.encoded[key]
        for stamp, part in list(self.results):
            if stamp.fragment == fragment and stamp.round <= round_:
                del self.results[stamp, part]
