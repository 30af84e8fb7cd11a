"""One bulk connection: chunks in and out of a socket, with back-pressure.

There is no asyncio transport: payload is received into memory that the owner names, and sent from
its place or from where it was encrypted. Must NOT dial or retry, nor keep more than one frame that
the kernel does not take.
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
from protocols.messages import Chunk, Padding
from protocols.types import PeerId
from protocols.wire import WireError

RECEIVE_BYTES_MAX = 1 << 20
"""Bytes received before other tasks have their turn: some 0.3 ms, 0.5 ms encrypted, and a sum."""
SEND_BYTES_MAX = 4 << 20
"""Bytes sent before other tasks have their turn: as many as a kernel takes at once, 1 ms, or 2 ms
encrypted."""
TURN_S_MAX = 0.002
"""No frame is begun or taken after so many seconds of a turn. Frames of sparse codecs are small but
take long to make (top-k: 30 KB, 0.9 ms); a turn that counts only bytes would take 30 ms."""
PADDING = memoryview(bytes(64 << 10))
"""The padding that is sent at once; payload that comes meanwhile waits for no more."""


class Seals(NamedTuple):
    """The ciphers of both directions of a connection."""

    outgoing: Seal
    incoming: Seal


class BulkOwner(Protocol):
    """Callbacks of a bulk connection about its chunks. No method may raise or block."""

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None:
        """The memory for `size` bytes of payload; None: read and drop them."""
        ...

    def chunk_received(self, peer: PeerId, chunk: Chunk) -> None:
        """The payload is in its place."""
        ...

    def payload_sent(self, peer: PeerId, chunk: Chunk, size: int) -> None:
        """The kernel took `size` more bytes of a chunk's payload."""
        ...

    def payload_received(self, peer: PeerId, chunk: Chunk, size: int, *, kept: bool) -> None:
        """A chunk's whole payload arrived; not `kept`: it was dropped."""
        ...


class WarmUp:
    """Padding while there is no payload, until the kernel knows the rate of the line."""

    def __init__(self, connection: socket.socket) -> None:
        self.requested = False
        self._connection = connection
        self._left_bytes = 0
        """Bytes of padding that may still be sent."""

    @property
    def is_due(self) -> bool:
        return self._left_bytes > 0

    def request(self, size_bytes: int) -> None:
        """Send at most so much padding from now on."""
        self.requested, self._left_bytes = True, size_bytes

    def next_frame(self, sent_bytes: int) -> Frame | None:
        """The next padding of a connection that has sent so many bytes; None if the rate is
        known."""
        # Nothing is known before the first bytes are acknowledged.
        if sent_bytes > UNSENT_BYTES and not is_starting(self._connection):
            self._left_bytes = 0
            return None
        self._left_bytes -= len(PADDING)
        return Padding(), PADDING


class OutgoingFrames:
    """The frames that a connection sends: chunks of its source, else padding. Reports the sent
    payload to the owner."""

    def __init__(self, owner: BulkOwner, peer: PeerId, writer: Writer, warm_up: WarmUp) -> None:
        self.writer = writer
        self.warm_up = warm_up
        self.source: Callable[[], Frame | None] | None = None
        """None before the first chunk, and after the end of the connection."""
        self.held = False
        """No other frame is begun (fault injection)."""
        self.on_chunk_sent: Callable[[Chunk], None] | None = None
        self.untold_bytes = 0
        """Sent bytes of the present chunk's payload that were not reported to the owner yet."""
        self._owner = owner
        self._peer = peer
        self._chunk: Chunk | None = None
        """The chunk that was begun last."""

    def begin_next(self, sent_bytes: int) -> bool:
        """Begin the next frame of a connection that has sent so many bytes; False if there is
        none."""
        if self.held or self.source is None:
            return False
        frame = self.source()
        if frame is None and self.warm_up.is_due:
            frame = self.warm_up.next_frame(sent_bytes)
        if frame is None:
            return False
        self.tell_sent()
        chunk, payload = frame
        self._chunk = chunk
        self.writer.begin_frame(chunk, memoryview(payload))
        if self.on_chunk_sent is not None:
            self.on_chunk_sent(chunk)
        return True

    def tell_sent(self) -> None:
        """Report sent bytes, once a turn for each chunk; a chunk that breaks off counts as far as
        it was sent."""
        size, self.untold_bytes = self.untold_bytes, 0
        if size and self._chunk is not None:
            self._owner.payload_sent(self._peer, self._chunk, size)

    def end(self) -> None:
        """Begin no other frame: the connection has ended."""
        self.on_chunk_sent, self.source = None, None


class IncomingChunks:
    """The chunks that arrive on a connection, as its reader finds them."""

    def __init__(self, owner: BulkOwner, peer: PeerId) -> None:
        self.is_open = True
        """False: the connection has ended, and the owner hears of no other chunk."""
        self._owner = owner
        self._peer = peer
        self._size = 0
        """Bytes of payload of the chunk that began to arrive last."""
        self._kept = False
        """It has a place."""

    def began(self, chunk: Chunk, size: int) -> memoryview | None:
        place = self._owner.place(self._peer, chunk, size) if self.is_open else None
        self._size, self._kept = size, place is not None
        return place

    def ended(self, chunk: Chunk) -> None:
        if not self.is_open:
            return
        kept = self._kept
        self._owner.payload_received(self._peer, chunk, self._size, kept=kept)
        if kept:
            self._owner.chunk_received(self._peer, chunk)


class Bulk:
    """Owns a connected socket: `start`, `feed_from`, then `close`."""

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
        """`closed(why)`: called once when the connection ends, never from within a call to this
        object; must not raise. `seals` None: unencrypted. `congestion`: as for `tune`."""
        self.peer = peer
        self.sent_bytes = 0
        self.received_bytes = 0
        self.is_open = True
        self.connection = connection
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._incoming = IncomingChunks(owner, peer)
        self._reader: Reader
        writer: Writer
        if seals is None:
            self._reader, writer = PlainReader(self._incoming), PlainWriter()
        else:
            self._reader = SealedReader(self._incoming, seals.incoming)
            writer = SealedWriter(seals.outgoing)
        self.outgoing = OutgoingFrames(owner, peer, writer, WarmUp(connection))
        self._sending = False
        """Within `wake`: the source may call `wake` again."""
        self.congested = False
        """There is more to send, when the kernel takes it or at the next turn."""
        tune(connection, bulk=True, congestion=congestion)

    def start(self) -> None:
        """Begin to receive."""
        self._loop.add_reader(self.connection, self._receive)

    def close(self, why: str) -> None:
        """Close the connection. The kernel still sends its data; a frame in part is of no use.
        `closed` follows."""
        if not self.is_open:
            return
        self.is_open = self._incoming.is_open = False
        self._loop.remove_reader(self.connection)
        self._loop.remove_writer(self.connection)
        self.connection.close()
        self.outgoing.end()
        self._loop.call_soon(self._closed, self, why)

    # Sending --------------------------------------------------------------------------------

    def feed_from(self, source: Callable[[], Frame | None]) -> None:
        """Call `source` for the next chunk whenever one can be sent; None means nothing until
        `wake`. The bytes must not change while they are being sent."""
        self.outgoing.source = source
        self.wake()

    def warm(self, size_bytes: int) -> None:
        """While there is nothing to send, send at most so much padding, to find out the rate of the
        line."""
        self.outgoing.warm_up.request(size_bytes)
        self.wake()

    def wake(self) -> None:
        """Send chunks, as many as the other end takes."""
        if not (self.congested or self._sending):
            self._send()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other end's kernel has not acknowledged; 0 if the connection has ended."""
        if not self.is_open:
            return 0
        unwritten = sum(piece.nbytes for piece in self.outgoing.writer.pending())
        queued = fcntl.ioctl(self.connection.fileno(), termios.TIOCOUTQ, bytes(4))
        return unwritten + struct.unpack("i", queued)[0]

    def _send(self) -> None:
        self._sending = True
        try:
            waits = self._send_turn()
        except OSError as error:
            waits = False
            self.close(str(error))
        self.outgoing.tell_sent()
        self._sending = False
        if waits != self.congested and self.is_open:
            self.congested = waits
            if waits:
                self._loop.add_writer(self.connection, self._send)
            else:
                self._loop.remove_writer(self.connection)

    def _send_turn(self) -> bool:
        """One turn of sending; True if there is more to send. Raises OSError."""
        budget, until = SEND_BYTES_MAX, time.monotonic() + TURN_S_MAX
        outgoing, writer = self.outgoing, self.outgoing.writer
        while self.is_open:
            if budget <= 0:
                return True
            pending = writer.pending()
            if not pending:
                if time.monotonic() >= until:
                    return True
                if not outgoing.begin_next(self.sent_bytes):
                    return False
                continue
            try:
                count = self.connection.sendmsg(pending)
            except BlockingIOError:
                return True
            outgoing.untold_bytes += writer.mark_sent(count)
            self.sent_bytes += count
            budget -= count
        return False

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
                    return  # There is no more data, or the loop calls again.
        except BlockingIOError:
            return
        except WireError as error:
            self.close(f"its bytes are no chunks: {error}")
        except OSError as error:
            self.close(str(error))
        except BaseException:
            # The stream cannot be continued in the middle of a chunk.
            self.close("an internal error")
            raise
