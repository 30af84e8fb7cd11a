"""Frames of the connection between a daemon and another host of its node, and their order.

A frame is a head and at most RECORD_BYTES_MAX bytes: a record, the step counters, or a piece of a
fragment. Frames that may go at once pass all pieces that wait; others keep their place behind
them, so that "contributed" comes after what was contributed. Must NOT send or receive.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from peers.ipc.msgpack_records import RECORD_BYTES_MAX, LinkError

HEAD = struct.Struct("<BHIIQ")
URGENT_BYTES_MAX = 4 * RECORD_BYTES_MAX
"""Bytes that may wait to be sent at once: for another side that does not read."""
BEHIND_MAX = 1 << 14
"""Records and parts of fragments that may wait; each rank has few of each fragment at a time."""


class FrameKind(IntEnum):
    """The content of a frame."""

    HOST = 1
    """A record of peers/hosts/messages.py."""
    RANK = 2
    """A record of peers/ipc/messages.py, from or to the rank of the head."""
    CONTRIBUTED_PIECE = 3
    """The next piece of the contribution of the rank of the head."""
    RESULT_PIECE = 4
    """The next piece of a result; the head has its place in place of a rank."""
    STEPS = 5
    """The step counters of the host's ranks, u64 each. Sent regularly, by a daemon without any:
    the connection is alive."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `rank`, `fragment` and `generation` are 0 where they mean nothing."""

    kind: FrameKind
    payload: bytes
    rank: int = 0
    fragment: int = 0
    generation: int = 0

    def encode(self) -> bytes:
        head = (self.kind, self.rank, len(self.payload), self.fragment, self.generation)
        return HEAD.pack(*head) + self.payload


def decode_head(head: bytes) -> tuple[Frame, int]:
    """The frame without its payload, and the number of bytes of that. Raises LinkError."""
    kind, rank, size, fragment, generation = HEAD.unpack(head)
    if size > RECORD_BYTES_MAX:
        raise LinkError(f"a frame of {size} bytes, at most {RECORD_BYTES_MAX}")
    try:
        return Frame(FrameKind(kind), b"", rank, fragment, generation), size
    except ValueError as error:
        raise LinkError(f"a frame of the unknown kind {kind}") from error


class Outgoing:
    """Frames that wait to be sent. Pieces are made when it is their turn: they cost no memory
    before."""

    def __init__(self) -> None:
        self._urgent: deque[bytes] = deque()
        self._urgent_bytes = 0
        self._behind: deque[Iterator[Frame]] = deque()

    def put(self, frame: Frame) -> None:
        """Send it before all pieces. Raises LinkError if too much waits."""
        encoded = frame.encode()
        self._urgent_bytes += len(encoded)
        if self._urgent_bytes > URGENT_BYTES_MAX:
            raise LinkError(f"it left {self._urgent_bytes} bytes unread")
        self._urgent.append(encoded)

    def put_behind(self, frames: Iterable[Frame]) -> None:
        """Send them in this order, after all that were put behind before. Raises LinkError if too
        much waits."""
        if len(self._behind) == BEHIND_MAX:
            raise LinkError(f"{BEHIND_MAX} messages and contributions wait for it")
        self._behind.append(iter(frames))

    def next_bytes(self) -> bytes:
        """The next frame; b"" if none waits. Raises LinkError if a piece cannot be made."""
        if self._urgent:
            encoded = self._urgent.popleft()
            self._urgent_bytes -= len(encoded)
            return encoded
        while self._behind:
            for frame in self._behind[0]:
                return frame.encode()
            self._behind.popleft()
        return b""

    def forget_behind(self) -> None:
        """Send nothing more of what waits behind: the attempt that it is of is over."""
        self._behind.clear()
