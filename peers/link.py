"""One connection: frames in and out, with back-pressure, and nothing about what they mean.

A frame is `u32 head length, u32 payload length` (little endian), the head (one message of
protocols/wire.py) and the payload (the bytes of a chunk; none for control messages). Received
payload goes straight to the place that its owner names. Must NOT dial, retry or decide.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from protocols import wire
from protocols.messages import Chunk, Control, Message

PREFIX = struct.Struct("<II")
STAGE_BYTES = 256 << 10
"""Control frames and heads are read through this; bigger payload bypasses it."""
CONTROL_OUTBOX_MAX = 4096
"""Messages that wait for a slow peer. A whole log of this length fits."""
BULK_OUTBOX_MAX = 1024
"""Slices, results and states that wait; their bytes are held elsewhere and read when due."""
CONTROL_WRITE_BYTES_MAX = 256 << 10
BULK_WRITE_BYTES_MAX = 2 << 20
assert PREFIX.size + wire.CHUNK_HEADER_BYTES_MAX <= STAGE_BYTES

Frame = tuple[Message, bytes | bytearray | memoryview]


class LinkOwner(Protocol):
    """What a link tells whoever made it. No method may raise or block."""

    def received(self, link: "Link", message: Message) -> None:
        """A whole control message."""
        ...

    def place(self, link: "Link", chunk: Chunk, size: int) -> memoryview | None:
        """Where `size` bytes of payload shall go; None: nowhere, read and drop them."""
        ...

    def chunk_received(self, link: "Link", chunk: Chunk) -> None:
        """The payload is at its place."""
        ...

    def closed(self, link: "Link", why: str) -> None:
        """The connection is over; called once."""
        ...


class Link(asyncio.BufferedProtocol):
    """A connected socket. Made by `asyncio.create_connection` or `create_server`."""

    def __init__(self, owner: LinkOwner) -> None:
        self.bulk = False
        self.peer = ""
        """Set by the owner after the hello."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.on_chunk_sent: Callable[[Message], None] | None = None
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._outbox: deque[Iterator[Frame]] = deque()
        self._paused = False
        self._held = False
        self._why = ""
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._staged = 0
        self._chunk: Chunk | None = None
        self._place: memoryview | None = None
        self._missing = 0
        """Bytes of payload still to come."""

    # Sending --------------------------------------------------------------------------------

    def send(self, message: Control) -> bool:
        """Queue a control message. False: the outbox is full, the peer is too slow."""
        return self._enqueue(iter(((message, b""),)), CONTROL_OUTBOX_MAX)

    def send_bulk(self, frames: Iterator[Frame]) -> bool:
        """Queue chunks that are made when they are due. False: the outbox is full."""
        return self._enqueue(frames, BULK_OUTBOX_MAX)

    def close(self, why: str) -> None:
        """End it after what is queued in the kernel; `closed` follows."""
        if self._transport is not None and not self._transport.is_closing():
            self._why = self._why or why
            self._outbox.clear()
            self._transport.close()

    def close_after_sending(self, why: str) -> None:
        """As `close`, but what was queued before goes out first (a refusal)."""
        self._pump()
        self.close(why)

    def abort(self) -> None:
        """End it at once, whatever is queued."""
        if self._transport is not None:
            self._transport.abort()

    def hold(self) -> None:
        """Send nothing more (fault injection)."""
        self._held = True

    def _enqueue(self, frames: Iterator[Frame], limit: int) -> bool:
        if self._transport is None or self._transport.is_closing():
            return True  # `closed` tells the owner; nothing is waited for.
        if len(self._outbox) >= limit:
            return False
        self._outbox.append(frames)
        self._pump()
        return True

    def _pump(self) -> None:
        transport = self._transport
        while transport is not None and self._outbox and not self._paused and not self._held:
            frame = next(self._outbox[0], None)
            if frame is None:
                self._outbox.popleft()
                continue
            message, payload = frame
            head = wire.encode(message)
            size = memoryview(payload).nbytes
            prefix = PREFIX.pack(len(head), size)
            self.sent_bytes += len(prefix) + len(head) + size
            if size:
                transport.writelines((prefix + head, payload))
                if self.on_chunk_sent is not None:
                    self.on_chunk_sent(message)
            else:
                transport.write(prefix + head)

    @property
    def unsent_bytes(self) -> int:
        """What the kernel has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    # asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance.
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.limit_writes(CONTROL_WRITE_BYTES_MAX)

    def limit_writes(self, limit_bytes: int) -> None:
        """How much may wait in the transport before the outbox is held back."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=limit_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._outbox.clear()
        self._transport = None
        self._place = None
        self._owner.closed(self, self._why or (str(exc) if exc else "end of stream"))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._missing and self._place is not None:
            return self._place[-self._missing :]
        return self._stage[self._staged :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self._missing and self._place is not None:
            self._missing -= nbytes
            if not self._missing:
                self._finish_chunk()
            return
        self._staged += nbytes
        try:
            used = self._parse()
        except wire.WireError as error:
            self.close(f"its bytes are no message: {error}")
            self._staged = 0
            return
        left = self._staged - used
        if used and left:
            self._stage[:left] = bytes(self._stage[used : self._staged])
        self._staged = left

    def eof_received(self) -> bool:
        return False

    # Receiving ------------------------------------------------------------------------------

    def _parse(self) -> int:
        """Take whole frames from the stage; return how many bytes were used."""
        used = 0
        while True:
            if self._missing:
                taken = self._take_payload(self._stage[used : self._staged])
                used += taken
                if self._missing:
                    return used
            if self._staged - used < PREFIX.size:
                return used
            head_bytes, payload_bytes = PREFIX.unpack_from(self._stage, used)
            limit = wire.CHUNK_HEADER_BYTES_MAX if self.bulk else wire.CONTROL_BYTES_MAX
            if head_bytes > limit or payload_bytes > wire.CHUNK_BYTES_MAX:
                raise wire.WireError(f"a frame of {head_bytes} + {payload_bytes} bytes")
            end = used + PREFIX.size + head_bytes
            if end > self._staged:
                self._make_room(end - used)
                return used
            message = wire.decode(self._stage[used + PREFIX.size : end], size_max=limit)
            used = end
            self._take_frame(message, payload_bytes)
            if self._transport is None or self._transport.is_closing():
                return self._staged

    def _take_frame(self, message: Message, payload_bytes: int) -> None:
        if isinstance(message, Chunk):
            if not self.bulk or not payload_bytes:
                raise wire.WireError("a chunk outside a bulk connection, or without payload")
            self._chunk, self._missing = message, payload_bytes
            self._place = self._owner.place(self, message, payload_bytes)
        elif payload_bytes:
            raise wire.WireError("a control message with payload")
        else:
            self._owner.received(self, message)

    def _take_payload(self, staged: memoryview) -> int:
        taken = min(len(staged), self._missing)
        if self._place is not None:
            start = len(self._place) - self._missing
            self._place[start : start + taken] = staged[:taken]
        self._missing -= taken
        if not self._missing:
            self._finish_chunk()
        return taken

    def _finish_chunk(self) -> None:
        chunk, placed = self._chunk, self._place is not None
        self._chunk, self._place = None, None
        assert chunk is not None
        if placed:
            self._owner.chunk_received(self, chunk)

    def _make_room(self, frame_bytes: int) -> None:
        """A control message may be longer than the stage; its size was checked."""
        if frame_bytes > len(self._stage):
            bigger = memoryview(bytearray(frame_bytes))
            bigger[: self._staged] = self._stage[: self._staged]
            self._stage = bigger
