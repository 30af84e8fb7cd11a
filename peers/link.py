"""One connection: frames in and out, with back-pressure, and nothing about what they mean.

A frame is `u32 head length, u32 payload length` (little endian), the head (one message of
protocols/wire.py) and the payload (the bytes of a chunk; none for control messages). Received
payload goes straight to the place that its owner names. Must NOT dial, retry or decide.
"""

import asyncio
import fcntl
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from peers.tuning import round_trip_s, tune
from protocols import limits, shapes, wire
from protocols.messages import Chunk, Control, Message

PREFIX = struct.Struct("<II")
STAGE_BYTES = 256 << 10
"""Control frames and heads are read through this; bigger payload bypasses it."""
HELLO_BYTES_MAX = 8 << 10
"""Before its hello a connection may send no more than this: four names of 128 characters, or a
refusal of 1024, in UTF-8."""
CONTROL_OUTBOX_MAX = 4096
"""Messages that wait for a slow peer. A whole log of this length fits."""
CONTROL_WRITE_BYTES_MAX = 256 << 10
BULK_WRITE_BYTES_MAX = 2 << 20
LINGER_S = 1.0
"""What was written before a close has this long to go out: the peer may have stopped reading."""
assert PREFIX.size + limits.CHUNK_HEADER_BYTES_MAX <= STAGE_BYTES

Frame = tuple[Message, bytes | bytearray | memoryview]


class LinkOwner(Protocol):
    """What a link tells whoever made it. No method may raise or block."""

    def opened(self, link: "Link") -> None:
        """The connection is there; `closed` will follow."""
        ...

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
        """The connection is over; called once for each `opened`."""
        ...


class Link(asyncio.BufferedProtocol):
    """A connected socket. Made by `asyncio.create_connection` or `create_server`."""

    def __init__(self, owner: LinkOwner, *, accepted: bool) -> None:
        """`accepted`: somebody else made the connection."""
        self.accepted = accepted
        self.peer = ""
        """Set by the owner after the hello."""
        self.certified = ""
        """The peer id in the other side's certificate; "" without one."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.held = False
        """Sends nothing more (fault injection)."""
        self.congested = False
        """The other end takes less than there is to send."""
        self.on_chunk_sent: Callable[[Message], None] | None = None
        self._owner = owner
        self._bulk = False
        self._head_bytes_max = HELLO_BYTES_MAX
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._why = ""
        self._outbox: deque[Control] = deque()
        self._source: Callable[[], Frame | None] | None = None
        self._paused = False
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._staged = 0
        self._chunk: Chunk | None = None
        self._place: memoryview | None = None
        self._missing = 0
        """Bytes of payload still to come."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._closing

    # Sending --------------------------------------------------------------------------------

    def send(self, message: Control) -> bool:
        """Queue a control message. False: the outbox is full, the peer is too slow."""
        if not self.is_open:
            return True  # `closed` tells the owner; nothing is waited for.
        if len(self._outbox) >= CONTROL_OUTBOX_MAX:
            return False
        self._outbox.append(message)
        self.wake()
        return True

    def feed_from(self, source: Callable[[], Frame | None]) -> None:
        """Ask there for the next chunk whenever one can be sent. None: nothing for now, until
        `wake`. Its bytes must not change while they are on their way."""
        self._source = source
        self.wake()

    def hold(self) -> None:
        """Send nothing more (fault injection)."""
        self.held = True

    def wake(self) -> None:
        """Send what there is, as far as the other end takes it."""
        transport = self._transport
        while transport is not None and not (self._closing or self.congested or self.held):
            frame = self._next()
            if frame is None:
                return
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

    def _next(self) -> Frame | None:
        if self._outbox:
            return self._outbox.popleft(), b""
        return self._source() if self._source is not None else None

    @property
    def unsent_bytes(self) -> int:
        """What the other end's kernel has not confirmed yet; 0 when the connection is over."""
        if self._transport is None or self._transport.is_closing():
            return 0
        unwritten = self._transport.get_write_buffer_size()
        descriptor = self._transport.get_extra_info("socket").fileno()
        (unconfirmed,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
        return unwritten + unconfirmed

    @property
    def round_trip_s(self) -> float | None:
        """As the kernel judges it from what was confirmed lately; None: it cannot say."""
        if self._transport is None or self._transport.is_closing():
            return None
        return round_trip_s(self._transport.get_extra_info("socket"))

    # Ending ---------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """End it after what was written; what waits in the outbox is dropped. `closed` follows."""
        if self._transport is None or self._closing:
            return
        self._closing, self._why = True, why
        self._place = None  # TLS still delivers; another connection may fill this place now.
        self._outbox.clear()
        self._transport.close()
        loop = asyncio.get_running_loop()
        self._linger = loop.call_later(LINGER_S, self._transport.abort)

    def abort(self, why: str) -> None:
        """End it at once, whatever was written."""
        self.close(why)
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance.
        self.certified = _named(transport.get_extra_info("peercert"))
        self._transport.set_write_buffer_limits(high=CONTROL_WRITE_BYTES_MAX)
        self._owner.opened(self)

    def restrict(self, head_bytes_max: int) -> None:
        """A stranger without a certificate may send less than one with."""
        self._head_bytes_max = head_bytes_max

    def become(self, peer: str, *, bulk: bool) -> None:
        """The hello said what this connection is for."""
        self.peer, self._bulk = peer, bulk
        self._head_bytes_max = limits.CHUNK_HEADER_BYTES_MAX if bulk else limits.CONTROL_BYTES_MAX
        if self._transport is None:
            return
        if (connection := self._transport.get_extra_info("socket")) is not None:
            tune(connection, bulk=bulk)
        if bulk:
            self._transport.set_write_buffer_limits(high=BULK_WRITE_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
        self._outbox.clear()
        self._transport, self._place, self.on_chunk_sent, self._source = None, None, None, None
        self._owner.closed(self, self._why or (str(exc) if exc else "end of stream"))

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self.wake()

    def eof_received(self) -> bool:
        self.close("end of stream")  # Whoever says no more will not read on either.
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._missing and self._place is not None:
            return self._place[-self._missing :]
        return self._stage[self._staged :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self._closing:
            return  # TLS delivers while it shuts down; the owner has forgotten this connection.
        if self._missing and self._place is not None:
            self._missing -= nbytes
            if not self._missing:
                self._finish_chunk()
        else:
            self._staged += nbytes
            self._parse()

    # Receiving ------------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver nothing until `resume`: the peer's bytes wait at the peer."""
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._parse()

    def _parse(self) -> None:
        """Take what is whole from the stage, and keep the rest."""
        used = 0
        try:
            while self.is_open and not self._paused and (taken := self._take(used)):
                used += taken
        except shapes.WireError as error:
            self.close(f"its bytes are no message: {error}")
        if not self.is_open:
            used = self._staged
        left = self._staged - used
        if used and left:
            self._stage[:left] = bytes(self._stage[used : self._staged])
        self._staged = left

    def _take(self, start: int) -> int:
        """Take a frame's head, or payload; returns how many bytes, 0 when more must come first."""
        if self._missing:
            return self._take_payload(self._stage[start : self._staged])
        if self._staged - start < PREFIX.size:
            return 0
        head_bytes, payload_bytes = PREFIX.unpack_from(self._stage, start)
        if head_bytes > self._head_bytes_max or payload_bytes > limits.CHUNK_BYTES_MAX:
            raise shapes.WireError(f"a frame of {head_bytes} + {payload_bytes} bytes")
        size = PREFIX.size + head_bytes
        if start + size > self._staged:
            self._make_room(size)
            return 0
        head = self._stage[start + PREFIX.size : start + size]
        self._take_head(wire.decode(head, size_max=self._head_bytes_max), payload_bytes)
        return size

    def _take_head(self, message: Message, payload_bytes: int) -> None:
        if isinstance(message, Chunk) != self._bulk or bool(payload_bytes) != self._bulk:
            raise shapes.WireError("chunks travel on bulk connections, and only they have payload")
        if isinstance(message, Chunk):
            self._chunk, self._missing = message, payload_bytes
            self._place = self._owner.place(self, message, payload_bytes)
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


def _named(certificate: Mapping[str, Any] | None) -> str:
    """The common name in what the ssl module says of a certificate that it has verified."""
    subject: Iterable[Iterable[tuple[str, str]]] = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""
