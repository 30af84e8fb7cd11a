"""One bulk connection: chunks in and out of a socket, with back-pressure.

No transport stands between: payload is received into the place that its owner names and sent from
where it lies, or from where it was sealed. Must NOT dial, retry or decide, nor keep more than one
frame that the kernel does not take.
"""

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from peers.connections.encryption import Seal, SealedReader, SealedWriter
from peers.connections.frames import Frame, PlainReader, PlainWriter, Reader, Writer
from peers.sockets.options import UNSENT_BYTES, is_starting, tune
from protocols.messages.peer import Chunk, Padding
from protocols.types.ids import PeerId
from protocols.wire.validators import WireError

RECEIVE_BYTES_MAX = 1 << 20
"""Received before others have their turn: some 0.3 ms, 0.5 ms sealed, and a sum."""
SEND_BYTES_MAX = 4 << 20
"""Sent before others have their turn: what a kernel takes at once, 1 ms, or 2 ms sealed."""
TURN_S_MAX = 0.002
"""No frame is begun, and none taken, after so much of a turn: of a codec that leaves much out it is
small and long in the making (top-k: 30 KB, 0.9 ms), and a turn that counts bytes alone takes 30."""
PADDING = memoryview(bytes(64 << 10))
"""At once: what comes meanwhile waits for no more."""


class Seals(NamedTuple):
    """Of both directions of a connection."""

    outgoing: Seal
    incoming: Seal


class BulkOwner(Protocol):
    """What a bulk connection tells of its chunks. No method may raise or block."""

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None:
        """Where `size` bytes of payload shall go; None: nowhere, read and drop them."""
        ...

    def chunk_received(self, peer: PeerId, chunk: Chunk) -> None:
        """The payload is at its place."""
        ...

    def payload_sent(self, peer: PeerId, chunk: Chunk, size: int) -> None:
        """The kernel took so many more bytes of a chunk's payload."""
        ...

    def payload_received(self, peer: PeerId, chunk: Chunk, size: int, *, kept: bool) -> None:
        """All of a chunk's payload came; not `kept`: it had no place, and was dropped."""
        ...


class Bulk:
    """A connected socket that is ours from now on: `start`, `feed_from`, and `close`."""

    def __init__(
        self,
        owner: BulkOwner,
        peer: PeerId,
        connection: socket.socket,
        *,
        closed: Callable[["Bulk", str], None],
        seals: Seals | None,
        congestion: str = "",
    ) -> None:
        """`closed`: it is over, and why; told once, never from within a call of ours, and must not
        raise. `seals` None: in the clear. `congestion`: as `tune` takes it."""
        self.peer = peer
        self.sent_bytes = 0
        self.received_bytes = 0
        self.held = False
        """Begins no other frame (fault injection)."""
        self.on_chunk_sent: Callable[[Chunk], None] | None = None
        self.is_open = True
        self.connection = connection
        self._owner = owner
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._reader: Reader
        self._writer: Writer
        if seals is None:
            self._reader, self._writer = PlainReader(self), PlainWriter()
        else:
            self._reader = SealedReader(self, seals.incoming)
            self._writer = SealedWriter(seals.outgoing)
        self._source: Callable[[], Frame | None] | None = None
        self._outgoing: Chunk | None = None
        """Begun last."""
        self._untold_bytes = 0
        """Of its payload, what the owner was not told yet that the kernel took."""
        self._incoming = (0, False)
        """Of the chunk that began last: how much payload it has, and whether it has a place."""
        self.warmed = False
        """Padding was asked for ..."""
        self._padding_bytes = 0
        """... and so much of it may go still."""
        self._sending = False
        """Within `wake`: what is fed from there may wake us again."""
        self.congested = False
        """More is sent when the kernel takes it, or at our next turn."""
        tune(connection, bulk=True, congestion=congestion)

    def start(self) -> None:
        """Receive."""
        self._loop.add_reader(self.connection, self._receive)

    def pause(self) -> None:
        """Receive nothing more until `start`: the peer's bytes wait at the peer."""
        if self.is_open:
            self._loop.remove_reader(self.connection)

    def close(self, why: str) -> None:
        """End it; what the kernel has still goes out, a frame that it has in part is of no use.
        `closed` follows."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self.connection)
        self._loop.remove_writer(self.connection)
        self.connection.close()
        self.on_chunk_sent, self._source = None, None
        self._loop.call_soon(self._closed, self, why)

    # Sending --------------------------------------------------------------------------------

    def feed_from(self, source: Callable[[], Frame | None]) -> None:
        """Ask there for the next chunk whenever one can be sent. None: nothing for now, until
        `wake`. Its bytes must not change while they are on their way."""
        self._source = source
        self.wake()

    def hold(self) -> None:
        """Begin no other frame (fault injection)."""
        self.held = True

    @property
    def is_warming(self) -> bool:
        return self._padding_bytes > 0

    def warm(self, size_bytes: int) -> None:
        """While there is nothing to send, find out what the line carries: send so much padding at
        most."""
        self.warmed, self._padding_bytes = True, size_bytes
        self.wake()

    def wake(self) -> None:
        """Send what there is, as far as the other end takes it."""
        if not (self.congested or self._sending):
            self._send()

    @property
    def unsent_bytes(self) -> int:
        """What the other end's kernel has not confirmed yet; 0 when the connection is over."""
        if not self.is_open:
            return 0
        unwritten = sum(piece.nbytes for piece in self._writer.pending())
        queued = fcntl.ioctl(self.connection.fileno(), termios.TIOCOUTQ, bytes(4))
        return unwritten + struct.unpack("i", queued)[0]

    def _send(self) -> None:
        self._sending = True
        try:
            waits = self._send_turn()
        except OSError as error:
            waits = False
            self.close(str(error))
        self._tell_sent()
        self._sending = False
        if waits != self.congested and self.is_open:
            self.congested = waits
            if waits:
                self._loop.add_writer(self.connection, self._send)
            else:
                self._loop.remove_writer(self.connection)

    def _send_turn(self) -> bool:
        """Raises OSError. True: there is more to send, when the kernel takes it."""
        budget, until = SEND_BYTES_MAX, time.monotonic() + TURN_S_MAX
        while self.is_open:
            if budget <= 0:
                return True
            pending = self._writer.pending()
            if not pending:
                if time.monotonic() >= until:
                    return True
                frame = self._next()
                if frame is None:
                    return False
                self._begin(*frame)
                continue
            try:
                count = self.connection.sendmsg(pending)
            except BlockingIOError:
                return True
            self._untold_bytes += self._writer.sent(count)
            self.sent_bytes += count
            budget -= count
        return False

    def _next(self) -> Frame | None:
        if self.held or self._source is None:
            return None
        frame = self._source()
        if frame is None and self.is_warming:
            # The first bytes have to be confirmed before there is anything to know.
            if self.sent_bytes > UNSENT_BYTES and not is_starting(self.connection):
                self._padding_bytes = 0
                return None
            self._padding_bytes -= len(PADDING)
            return Padding(), PADDING
        return frame

    def _begin(self, chunk: Chunk, payload: bytes | bytearray | memoryview) -> None:
        self._tell_sent()
        self._outgoing = chunk
        self._writer.begin(chunk, memoryview(payload))
        if self.on_chunk_sent is not None:
            self.on_chunk_sent(chunk)

    def _tell_sent(self) -> None:
        """Once a turn for each chunk: what is cut off counts as far as it went."""
        size, self._untold_bytes = self._untold_bytes, 0
        if size and self._outgoing is not None:
            self._owner.payload_sent(self.peer, self._outgoing, size)

    # Receiving ------------------------------------------------------------------------------

    def _receive(self) -> None:
        budget, until = RECEIVE_BYTES_MAX, time.monotonic() + TURN_S_MAX
        try:
            while self.is_open and budget > 0 and time.monotonic() < until:
                room = self._reader.room()
                count = self.connection.recvmsg_into(room)[0]
                if not count:
                    self.close("end of stream")
                    return
                self.received_bytes += count
                budget -= count
                self._reader.filled(count)
                if count < sum(map(len, room)):
                    return  # There is no more, or the loop calls again.
        except BlockingIOError:
            return
        except WireError as error:
            self.close(f"its bytes are no chunks: {error}")
        except OSError as error:
            self.close(str(error))
        except BaseException:
            self.close("a fault of ours")  # In the middle of a chunk nobody can go on.
            raise

    def began(self, chunk: Chunk, size: int) -> memoryview | None:
        place = self._owner.place(self.peer, chunk, size) if self.is_open else None
        self._incoming = size, place is not None
        return place

    def ended(self, chunk: Chunk) -> None:
        if not self.is_open:
            return
        size, kept = self._incoming
        self._owner.payload_received(self.peer, chunk, size, kept=kept)
        if kept:
            self._owner.chunk_received(self.peer, chunk)
