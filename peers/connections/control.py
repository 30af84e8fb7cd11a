"""One control connection: messages in and out, with back-pressure.

Frames are those of frames.py, without payload. Must NOT dial, retry, or know what a message means.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from peers.connections.frames import PREFIX, grown
from peers.sockets.name_resolution import dialable
from peers.sockets.options import round_trip_s, tune
from protocols.messages import Chunk, Control
from protocols.types import PeerId, limits
from protocols.wire import WireError, codec

STAGE_BYTES = 256 << 10
"""Bytes of the buffer through which frames are read."""
HELLO_BYTES_MAX = 8 << 10
"""Bytes that a connection may send before its hello: four names of 128 characters, or a refusal of
1024, in UTF-8."""
CONTROL_OUTBOX_MAX = 4096
"""Messages that wait for a slow peer. A whole log of this length fits."""
CONTROL_WRITE_BYTES_MAX = 256 << 10
LINGER_S = 1.0
"""Seconds that written data has to go out after a close: the peer may have stopped reading."""


class LinkOwner(Protocol):
    """Callbacks of a link to its owner. No method may raise or block."""

    def opened(self, link: "Link") -> None:
        """The connection is open; `closed` will follow."""
        ...

    def received(self, link: "Link", message: Control) -> None:
        """A message has arrived."""
        ...

    def closed(self, link: "Link", why: str) -> None:
        """The connection has ended; called once for each `opened`."""
        ...


class IncomingMessages:
    """The received bytes of a link, cut into messages."""

    def __init__(self) -> None:
        self.stage = memoryview(bytearray(STAGE_BYTES))
        """Further bytes go behind the first `staged` ones."""
        self.staged = 0
        self.head_bytes_max = HELLO_BYTES_MAX
        """Bytes that a message may have."""
        self.paused = False
        """No message is taken."""
        self.stirs: Callable[[], None] | None = None
        """Called when bytes have arrived, and no complete message with them."""
        self._taken = 0
        """Bytes of the stage that were messages, which are taken."""

    def take(self) -> Control | None:
        """The next message; None if more bytes must come first. Raises WireError."""
        start = self._taken
        if self.paused or self.staged - start < PREFIX.size:
            return None
        head_bytes, payload_bytes = PREFIX.unpack_from(self.stage, start)
        if head_bytes > self.head_bytes_max or payload_bytes:
            raise WireError(f"a frame of {head_bytes} + {payload_bytes} bytes")
        size = PREFIX.size + head_bytes
        if start + size > self.staged:
            if size > len(self.stage):  # The size has been checked.
                self.stage = grown(self.stage, self.staged, size)
            return None
        head = self.stage[start + PREFIX.size : start + size]
        message = codec.decode(head, size_max=self.head_bytes_max)
        if isinstance(message, Chunk):
            raise WireError("chunks travel on bulk connections")
        self._taken = start + size
        return message

    def make_room(self) -> None:
        """Drop the taken bytes, and move the rest to the start of the stage."""
        left = self.staged - self._taken
        if self._taken and left:
            self.stage[:left] = bytes(self.stage[self._taken : self.staged])
        self.staged, self._taken = left, 0

    def clear(self) -> None:
        self.staged = self._taken = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """A link that is being closed by this side."""

    why: str
    linger: asyncio.TimerHandle
    """Ends the connection if the written data does not go out."""


class Link(asyncio.BufferedProtocol):
    """A connected socket. Made by `asyncio.create_connection` or `create_server`."""

    def __init__(self, owner: LinkOwner, *, accepted: bool) -> None:
        """`accepted`: the other side made the connection."""
        self.accepted = accepted
        self.peer = ""
        """Set by the owner after the hello."""
        self.through = PeerId("")
        """If we dialled through a tunnel: the peer in the middle; else ""."""
        self.certified = ""
        """The peer id in the other side's certificate; "" without one."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.congested = False
        """The other end takes less than there is to send."""
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._ending: Ending | None = None
        self._outbox: deque[Control] = deque()
        self._incoming = IncomingMessages()

    @property
    def remote(self) -> tuple[str, int]:
        """The address of the other end. Raises OSError if the connection has ended."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        if not name:
            raise OSError("the control connection is over")
        return dialable(name)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._ending is None

    # Sending --------------------------------------------------------------------------------

    def send(self, message: Control) -> bool:
        """Queue a message. False if the outbox is full, i.e. the peer is too slow."""
        if not self.is_open:
            return True  # The owner learns of the end by `closed`; the message is dropped.
        if len(self._outbox) >= CONTROL_OUTBOX_MAX:
            return False
        self._outbox.append(message)
        self._flush()
        return True

    def _flush(self) -> None:
        """Send queued messages, as many as the other end takes."""
        transport = self._transport if self._ending is None else None
        while transport is not None and self._outbox and not self.congested:
            head = codec.encode(self._outbox.popleft())
            self.sent_bytes += PREFIX.size + len(head)
            transport.write(PREFIX.pack(len(head), 0) + head)

    @property
    def round_trip_s(self) -> float | None:
        """The kernel's smoothed round trip in seconds; None if it has none."""
        if self._transport is None or self._transport.is_closing():
            return None
        return round_trip_s(self._transport.get_extra_info("socket"))

    # Ending ---------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Close the connection after the written data; queued messages are dropped. `closed`
        follows."""
        if self._transport is None or self._ending is not None:
            return
        loop = asyncio.get_running_loop()
        self._ending = Ending(why, loop.call_later(LINGER_S, self._transport.abort))
        self._outbox.clear()
        self._transport.close()

    def abort(self, why: str) -> None:
        """Close the connection at once; written data may be lost."""
        self.close(why)
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if transport.is_closing():
            return  # The caller has given it up; uvloop would not report its end.
        # uvloop's transport does not inherit from it.
        self._transport = cast(asyncio.Transport, transport)
        self.certified = _named(transport.get_extra_info("peercert"))
        self._transport.set_write_buffer_limits(high=CONTROL_WRITE_BYTES_MAX)
        self._owner.opened(self)

    def restrict(self, head_bytes_max: int) -> None:
        """Limit the messages of a connection without a certificate."""
        self._incoming.head_bytes_max = head_bytes_max

    def become(self, peer: str, stirs: Callable[[], None] | None = None) -> None:
        """The hello has named the peer. `stirs`: called when bytes have arrived, and no complete
        message with them."""
        self.peer, self._incoming.stirs = peer, stirs
        self._incoming.head_bytes_max = limits.CONTROL_BYTES_MAX
        if self._transport is None:
            return
        if (connection := self._transport.get_extra_info("socket")) is not None:
            tune(connection, bulk=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return  # It was never opened.
        why = str(exc) if exc else "end of stream"
        if self._ending is not None:
            self._ending.linger.cancel()
            why = self._ending.why or why
        self._outbox.clear()
        self._transport = None
        self._owner.closed(self, why)

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self._flush()

    def eof_received(self) -> bool:
        self.close("end of stream")  # A peer that has stopped sending will not read either.
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming.stage[self._incoming.staged :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self._ending is not None:
            return  # TLS delivers data while it shuts down; the owner has dropped this connection.
        self._incoming.staged += nbytes
        self._parse()

    # Receiving ------------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver nothing until `resume`: further bytes wait at the peer."""
        self._incoming.paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._incoming.paused:
            return
        self._incoming.paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._parse()

    def _parse(self) -> None:
        """Deliver the messages that are here."""
        incoming, complete = self._incoming, False
        try:
            while self.is_open and (message := incoming.take()) is not None:
                complete = True
                self._owner.received(self, message)
        except WireError as error:
            self.close(f"its bytes are no message: {error}")
        if not self.is_open:
            incoming.clear()
            return
        incoming.make_room()
        if not complete and incoming.stirs is not None:
            incoming.stirs()


def _named(certificate: Mapping[str, Any] | None) -> str:
    """The common name of a verified certificate, as the ssl module returns it."""
    subject: Iterable[Iterable[tuple[str, str]]] = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""
