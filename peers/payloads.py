"""Bulk bytes between the links and the work: chunks become slices, results and states.

Memory is given only for a payload that somebody expects, and for one at a time per sender. Must
NOT decide whether a payload counts (the core does) nor look into it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from peers.work import Bytes
from protocols.ids import Contributor, PeerId, Stamp, Version
from protocols.limits import CHUNK_BYTES_MAX
from protocols.messages import Chunk

SliceKey = tuple[int, int, int, int, Contributor]
"""(fragment, round, view, part, contributor): not the attempt, but which bytes."""
ResultKey = tuple[Stamp, int]


def chunks(header: Chunk, payload: Bytes) -> Iterator[tuple[Chunk, memoryview]]:
    """The frames of one payload; `header`'s extent is filled in."""
    view = memoryview(payload).cast("B")
    for offset in range(0, view.nbytes, CHUNK_BYTES_MAX):
        part = view[offset : offset + CHUNK_BYTES_MAX]
        yield replace(header, offset_bytes=offset, total_bytes=view.nbytes), part


@dataclass(slots=True)
class Assembly:
    """A payload of which some chunks are here."""

    header: Chunk
    """With offset 0."""
    buffer: bytearray
    received: int = 0


class Assembler:
    """Puts chunks together: one payload at a time per sender, for connections are in order."""

    def __init__(self, is_expected: Callable[[PeerId, Chunk], bool]) -> None:
        """`is_expected` says whether the payload, with its total size, may come from there."""
        self._is_expected = is_expected
        self._open: dict[PeerId, Assembly] = {}
        self.refused = 0
        """Payloads that got no memory, or broke off."""

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None:
        """Where the next `size` bytes go; None: nowhere."""
        if chunk.offset_bytes == 0:
            self._begin(peer, chunk)
        assembly = self._open.get(peer)
        if assembly is None:
            return None  # Its beginning was refused, and counted.
        expected = min(CHUNK_BYTES_MAX, len(assembly.buffer) - assembly.received)
        follows = chunk == replace(assembly.header, offset_bytes=assembly.received)
        if not follows or size != expected:
            del self._open[peer]
            self.refused += 1
            return None
        return memoryview(assembly.buffer)[assembly.received : assembly.received + size]

    def _begin(self, peer: PeerId, chunk: Chunk) -> None:
        if self._open.pop(peer, None) is not None:
            self.refused += 1
        if chunk.total_bytes and self._is_expected(peer, chunk):
            self._open[peer] = Assembly(chunk, bytearray(chunk.total_bytes))
        else:
            self.refused += 1

    def received(self, peer: PeerId, chunk: Chunk) -> bytearray | None:
        """The chunk is at its place; the whole payload if it was the last one."""
        assembly = self._open.get(peer)
        if assembly is None:
            return None
        assembly.received = min(assembly.received + CHUNK_BYTES_MAX, len(assembly.buffer))
        if assembly.received < len(assembly.buffer):
            return None
        del self._open[peer]
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

    @staticmethod
    def slice_key(stamp: Stamp, part: int, contributor: Contributor) -> SliceKey:
        return (stamp.fragment, stamp.round, stamp.view, part, contributor)

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


@dataclass(slots=True)
class Transfer:
    """The state of a cut on its way to us."""

    donor: PeerId
    cut_index: int
    versions: tuple[Version, ...]
    since: float
    """When we read the cut."""
    states: dict[int, Bytes] = field(default_factory=dict[int, Bytes])
    """By fragment: arrived, and not adopted yet."""
    adopted: set[int] = field(default_factory=set[int])
    size_bytes: int = 0
    """Of what is adopted."""

    def lacks(self, peer: PeerId, cut_index: int, fragment: int) -> bool:
        """Only the donor of this very cut is listened to, and once for each fragment."""
        if (peer, cut_index) != (self.donor, self.cut_index):
            return False
        wanted = any(version.fragment == fragment for version in self.versions)
        return wanted and fragment not in self.states and fragment not in self.adopted

    def adopt(self, fragment: int) -> Bytes:
        """Hand out an arrived state, once."""
        state = self.states.pop(fragment)
        self.adopted.add(fragment)
        self.size_bytes += memoryview(state).nbytes
        return state

    @property
    def complete(self) -> bool:
        return len(self.adopted) == len(self.versions)
