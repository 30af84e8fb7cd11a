"""Frames: a message followed by the bytes of a chunk, read from a stream and written to one.

A frame is `u32 head length, u32 payload length` (little endian), the head (one message of
protocols/wire/codec.py) and the payload (none for control messages). This file has the unencrypted
frames of bulk connections; encryption.py has the encrypted ones. Must NOT touch a socket, nor copy
payload that can be received into, or sent from, its place.
"""

import struct
from typing import Protocol

from protocols.messages import Chunk
from protocols.types import limits
from protocols.wire import WireError, codec

PREFIX = struct.Struct("<II")
STAGE_BYTES = 6 << 10
"""Bytes after a payload that are read together with its end: the next head and a small payload then
come with one system call. Not more, since they must be copied to their place."""
DROPPED_BYTES = 64 << 10
"""Bytes of the buffer through which unwanted payload is read."""

Frame = tuple[Chunk, bytes | bytearray | memoryview]


class Sink(Protocol):
    """The receiver of chunks. No method may raise or block."""

    def began(self, chunk: Chunk, size: int) -> memoryview | None:
        """The memory for `size` bytes of payload; None: read and drop them."""
        ...

    def ended(self, chunk: Chunk) -> None:
        """The whole payload is in its place, or was dropped."""
        ...


class Reader(Protocol):
    """Decodes chunks from a stream: read into `room`, then call `filled` with the number of
    bytes."""

    def room(self) -> list[memoryview]:
        """The buffers for the next bytes, in order."""
        ...

    def filled(self, count: int) -> None:
        """Take `count` new bytes. Raises WireError if they are no chunks."""
        ...


class Writer(Protocol):
    """Encodes frames into a stream, one after the other."""

    def begin_frame(self, chunk: Chunk, payload: memoryview) -> None:
        """Begin the next frame; the last one must be sent completely."""
        ...

    def pending(self) -> list[memoryview]:
        """The buffers to send next; empty if the frame is sent completely."""
        ...

    def mark_sent(self, count: int) -> int:
        """`count` bytes of `pending` were sent; returns how many of them are payload."""
        ...


class PlainReader:
    """Unencrypted frames: payload is received into its place."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._staged = 0
        self._chunk: Chunk | None = None
        self._place: memoryview | None = None
        self._dropped = memoryview(b"")
        self._missing = 0
        """Bytes of payload that are still to come; if there are any, the stage is empty."""

    def room(self) -> list[memoryview]:
        if not self._missing:
            return [self._stage[self._staged :]]
        if self._place is not None:
            return [self._place[-self._missing :], self._stage]
        self._dropped = self._dropped or memoryview(bytearray(DROPPED_BYTES))
        if self._missing > DROPPED_BYTES:
            return [self._dropped]
        return [self._dropped[: self._missing], self._stage]

    def filled(self, count: int) -> None:
        taken = min(count, self._missing)
        self._take_payload(taken)
        self._staged += count - taken
        used = 0
        while not self._missing and (head := self._take_head(used)):
            used += head
            taken = min(self._staged - used, self._missing)
            if self._place is not None:
                start = len(self._place) - self._missing
                self._place[start : start + taken] = self._stage[used : used + taken]
            used += taken
            self._take_payload(taken)
        left = self._staged - used
        if used and left:
            self._stage[:left] = bytes(self._stage[used : self._staged])
        self._staged = left

    def _take_head(self, start: int) -> int:
        """Take the head of a frame; returns its number of bytes, 0 if more must come."""
        if self._staged - start < PREFIX.size:
            return 0
        head_bytes, payload_bytes = unpack_prefix(self._stage[start:])
        size = PREFIX.size + head_bytes
        if size > len(self._stage):
            self._stage = grown(self._stage, self._staged, size)
        if start + size > self._staged:
            return 0
        self._chunk = decode_head(self._stage[start + PREFIX.size : start + size])
        self._missing = payload_bytes
        self._place = self._sink.began(self._chunk, payload_bytes)
        return size

    def _take_payload(self, count: int) -> None:
        if not count:
            return
        self._missing -= count
        if not self._missing:
            assert self._chunk is not None
            self._sink.ended(self._chunk)
            self._chunk, self._place = None, None


class PlainWriter:
    """Unencrypted frames: payload is sent from its place."""

    def __init__(self) -> None:
        self._pending: list[memoryview] = []

    def begin_frame(self, chunk: Chunk, payload: memoryview) -> None:
        head = codec.encode(chunk)
        prefix = PREFIX.pack(len(head), payload.nbytes)
        self._pending = [memoryview(prefix + head), payload]

    def pending(self) -> list[memoryview]:
        return self._pending

    def mark_sent(self, count: int) -> int:
        pending = self._pending
        head = pending[0].nbytes if len(pending) > 1 else 0
        payload = max(count - head, 0)
        while pending and count >= pending[0].nbytes:
            count -= pending.pop(0).nbytes
        if count:
            pending[0] = pending[0][count:]
        return payload


def unpack_prefix(staged: memoryview) -> tuple[int, int]:
    """(bytes of the head, bytes of payload). Raises WireError."""
    head_bytes, payload_bytes = PREFIX.unpack_from(staged)
    heads, payloads = limits.CHUNK_HEADER_BYTES_MAX, limits.CHUNK_BYTES_MAX
    if head_bytes > heads or not 0 < payload_bytes <= payloads:
        raise WireError(f"a chunk of {head_bytes} + {payload_bytes} bytes")
    return head_bytes, payload_bytes


def decode_head(head: memoryview) -> Chunk:
    """Decode the head of a frame. Raises WireError."""
    message = codec.decode(head, size_max=limits.CHUNK_HEADER_BYTES_MAX)
    if not isinstance(message, Chunk):
        raise WireError("only chunks travel on bulk connections")
    return message


def grown(stage: memoryview, staged: int, size: int) -> memoryview:
    """A larger stage for a longer head; the size has been checked."""
    bigger = memoryview(bytearray(size))
    bigger[:staged] = stage[:staged]
    return bigger
