"""Chunks for tests: who takes them, and streams of them that need no socket.

Must NOT hold tests.
"""

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from peers.connections.encryption import RECORD_BYTES
from peers.connections.frames import STAGE_BYTES, Frame, Reader, Writer
from protocols.messages.peer import Chunk, StateChunk
from protocols.types.ids import PeerId

PEER = PeerId("beta.00000002")
SIZES = st.lists(
    st.sampled_from([1, 2, 1000, STAGE_BYTES, RECORD_BYTES, RECORD_BYTES + 1, 1 << 20]), max_size=4
)
CUTS = st.lists(st.sampled_from([1, 7, 8, 9, 60, STAGE_BYTES, 5000, RECORD_BYTES + 16]), max_size=9)


def state_chunk(size: int) -> StateChunk:
    return StateChunk(1, 2, 3, 0, 4, 0, max(size // 4, 1))


def payloads_of(sizes: Iterable[int]) -> list[bytes]:
    return [bytes([n + 1]) * (size - 1) + b"\xff" for n, size in enumerate(sizes)]


class Taker:
    """A sink, and the owner of bulk connections: gives memory to every chunk unless told not to."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.why: list[str] = []
        self.refuses = 0
        """Chunks that get no memory."""
        self.given = memoryview(b"")

    def began(self, chunk: Chunk, size: int) -> memoryview | None:
        if self.refuses:
            self.refuses -= 1
            self.given = memoryview(b"")
            return None
        self.given = memoryview(bytearray(size))
        return self.given

    def ended(self, chunk: Chunk) -> None:
        if self.given:
            self.payloads.append(bytes(self.given))


def pour(reader: Reader, stream: bytes, cuts: Sequence[int] = ()) -> None:
    """Let it read a stream that comes in pieces of these sizes."""
    cuts = [*cuts, 300_000]  # Some progress with each turn.
    start = step = 0
    while start < len(stream):
        piece = stream[start : start + cuts[step % len(cuts)]]
        taken = 0
        for room in reader.room():
            part = piece[taken : taken + len(room)]
            room[: len(part)] = part
            taken += len(part)
        assert taken, "it has no room for more"
        reader.filled(taken)
        start, step = start + taken, step + 1


def written(writer: Writer, frames: Iterable[Frame], cuts: Sequence[int] = ()) -> list[bytes]:
    """What becomes of each frame, if no more than this is taken at a time."""
    made: list[bytes] = []
    step, cuts = 0, [*cuts, 300_000]
    for chunk, payload in frames:
        writer.begin_frame(chunk, memoryview(payload))
        stream, payload_bytes = bytearray(), 0
        while pending := writer.pending():
            taken = b"".join(pending)[: cuts[step % len(cuts)]]
            stream += taken
            payload_bytes += writer.mark_sent(len(taken))
            step += 1
        made.append(bytes(stream))
        assert payload_bytes == len(payload)
    return made
