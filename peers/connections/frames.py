"""Frames: a message and, behind it, the bytes of a chunk, cut from a stream and made into one.

A frame is `u32 head length, u32 payload length` (little endian), the head (one message of
protocols/wire/codec.py) and the payload (none for control messages). Here are those of bulk
connections in the clear; encryption.py has them sealed. Must NOT touch a socket, nor copy payload
that can be received or sent where it lies.
"""

import struct
from typing import Protocol

from protocols.messages.peer import Chunk
from protocols.types import limits
from protocols.wire import codec
from protocols.wire.validators import WireError

PREFIX = struct.Struct("<II")
STAGE_BYTES = 6 << 10
"""Of what follows a payload, read together with its end: the next head, a small payload (one call
of the kernel then brings both), and not much more, since it has to be copied to its place."""
DROPPED_BYTES = 64 << 10
"""Payload that nobody wants is read through memory of this size."""

Frame = tuple[Chunk, bytes | bytearray | memoryview]


class Sink(Protocol):
    """Where received chunks go. No method may raise or block."""

    def began(self, chunk: Chunk, size: int) -> memoryview | None:
        """Where `size` bytes of payload shall go; None: nowhere, read and drop them."""
        ...

    def ended(self, chunk: Chunk) -> None:
        """All of the payload is at its place, or was dropped."""
        ...


class Reader(Protocol):
    """Chunks out of a stream: read into `room`, then say how much with `filled`."""

    def room(self) -> list[memoryview]:
        """Where the next bytes go, one buffer after the other."""
        ...

    def filled(self, count: int) -> None:
        """So many bytes came. Raises WireError: they are no chunks."""
        ...


class Writer(Protocol):
    """Frames into a stream, one after the other."""

    def begin(self, chunk: Chunk, payload: memoryview) -> None:
        """The next frame; all of the last one was sent."""
        ...

    def pending(self) -> list[memoryview]:
        """What is to be sent next; nothing: all of the frame was."""
        ...

    def sent(self, count: int) -> int:
        """So many bytes of `pending` are on their way; returns how many of them are payload."""
        ...


class PlainReader:
    """In the clear: payload is received into its place."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._staged = 0
        self._chunk: Chunk | None = None
        self._place: memoryview | None = None
        self._dropped = memoryview(b"")
        self._missing = 0
        """Bytes of payload still to come; the stage is empty then."""

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
        """Take what stands before a payload; returns how many bytes, 0 when more must come."""
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
    """In the clear: payload is sent from where it lies."""

    def __init__(self) -> None:
        self._pending: list[memoryview] = []

    def begin(self, chunk: Chunk, payload: memoryview) -> None:
        head = codec.encode(chunk)
        prefix = PREFIX.pack(len(head), payload.nbytes)
        self._pending = [memoryview(prefix + head), payload]

    def pending(self) -> list[memoryview]:
        return self._pending

    def sent(self, count: int) -> int:
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
    """Raises WireError."""
    message = codec.decode(head, size_max=limits.CHUNK_HEADER_BYTES_MAX)
    if not isinstance(message, Chunk):
        raise WireError("only chunks travel on bulk connections")
    return message


def grown(stage: memoryview, staged: int, size: int) -> memoryview:
    """A stage for a longer head; its size was checked."""
    bigger = memoryview(bytearray(size))
    bigger[:staged] = stage[:staged]
    return bigger
