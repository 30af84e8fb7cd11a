"""The Unix stream socket between the daemon and each rank: the daemon's end.

All messages between the two (`peers/ipc/messages.py`, `peers/ipc/step_orders.py`) pass over it as
framed records (`peers/ipc/msgpack_records.py`), in order; only Obeyed is reported at once, past the
inbox. The end of the stream means that the other side is gone, in both directions; the rank's end
is `peers/ipc/rank_socket.py`. Must NOT decide anything (`peers/ranks/attempt.py`).
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from peers.ipc.messages import (
    FD,
    Boundary,
    Contributed,
    DaemonMessage,
    RankEvaluated,
    RankHello,
    RankLayout,
    RankMessage,
    RankReady,
    RankRefused,
    SampleDemand,
    Snapshotted,
    StepMetrics,
    TrainsNoMore,
    Unfit,
)
from peers.ipc.msgpack_records import (
    RECORD_BYTES_MAX,
    LinkError,
    decode,
    frame,
    kinds_of,
    take_frame,
)
from peers.ipc.step_orders import Obeyed
from peers.processes.process_handles import ProcessHandle

UNSENT_BYTES_MAX = 4 * RECORD_BYTES_MAX  # For a rank that does not read.
UNREAD_MESSAGES_MAX = 8
"""Messages of one link in the inbox; more are not read from its socket. The messages of a rank at
one boundary fit. A link holds at most these records and the read part of the next ones: less than
10 MiB of bytes, and ten times that of objects. While the daemon is busy, messages wait in the
socket, which has room for some hundreds of short ones; then the rank waits."""
MESSAGES_IN_A_ROW_MAX = 32
"""Messages handled in a row, all of a node's ranks at one boundary; then other tasks have their
turn."""
READ_BYTES = 1 << 16
READS_IN_A_ROW_MAX = 4
"""Reads in a row, as much as a socket holds; then other tasks have their turn."""
HELLO_TIMEOUT_S = 10.0
"""A connection that has not said hello after this long is closed."""
REFUSED_LINGER_S = 5.0
"""A refused rank has this long to read why: its watcher ends it when we close."""
UNIX_PATH_BYTES_MAX = 107
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_FROM_RANK = kinds_of(
    *(RankHello, RankLayout, RankReady, Unfit, Boundary, SampleDemand),
    *(Contributed, StepMetrics, RankEvaluated, Snapshotted, TrainsNoMore, Obeyed),
)


@dataclass(frozen=True, slots=True)
class Closed:
    """The last record from each link, not sent by the rank. `ended`: the rank closed it, so its
    exit status, which follows, tells more."""

    why: str
    ended: bool


class RankLink(Protocol):
    """The daemon's end of the connection of one rank, which may run on another host."""

    @property
    def pid(self) -> int:
        """The rank's process; 0 if it is not on this host."""
        ...

    def accept(self) -> None:
        """Its hello is valid."""
        ...

    def send(self, message: DaemonMessage, *, fd: int = -1) -> None: ...
    def refuse(self, why: str) -> None: ...
    def taken(self) -> None:
        """A message of this link left the inbox."""
        ...


Inbox = asyncio.Queue[tuple[RankLink, RankMessage | Closed]]


class IncomingRecords:
    """The bytes that a rank has sent, cut into messages as far as the inbox has room for them."""

    def __init__(self) -> None:
        self.stream = bytearray()
        self.unread = 0
        """Messages of this link in the inbox."""

    def take(self) -> RankMessage | Obeyed | None:
        """The next message; None if the inbox has no room, or more bytes must come first. Raises
        LinkError."""
        if self.unread == UNREAD_MESSAGES_MAX or (payload := take_frame(self.stream)) is None:
            return None
        return decode(payload, _FROM_RANK)


class DaemonSocket:
    """The daemon's end of one rank's socket, with callbacks of the event loop and no task. Messages
    go to the server's inbox, the last one is a `Closed`; Obeyed goes past the inbox."""

    def __init__(
        self, connection: socket.socket, *, pid: int, server: "DaemonSocketServer"
    ) -> None:
        """Raises OSError if the process is in a namespace that is not visible here."""
        self._pid = pid
        self._socket = connection
        self._server = server
        self._loop = server.loop
        self._process: ProcessHandle | None = None
        """None: the process had ended before its connection was accepted."""
        with contextlib.suppress(ProcessLookupError):
            self._process = ProcessHandle(pid)
        self._incoming = IncomingRecords()
        self._reading = True
        self._unsent = bytearray()
        self._identified = False
        self._refused = ""
        self._ending = ""
        """Why no message follows but those in the socket; "" while that is not known."""
        self._timer = self._loop.call_later(HELLO_TIMEOUT_S, self.close, "it sent no hello")
        self._loop.add_reader(self._socket, self._on_readable)
        # A forked child of the rank may hold its end of the socket open after its death.
        if self._process is not None:
            self._process.watch(self._on_process_end)
        else:
            self._on_process_end()

    @property
    def pid(self) -> int:
        return self._pid

    def accept(self) -> None:
        """Its hello is valid: it is a rank of this node, to be killed with its attempt."""
        self._identified = True
        if not self._refused:
            self._timer.cancel()

    def send(self, message: DaemonMessage, *, fd: int = -1) -> None:
        """Never blocks; a rank that does not read is closed. Raises LinkError if too large."""
        unsent = frame(message)
        if self._ending or self._socket.fileno() < 0:
            return  # It is gone; the inbox has a Closed, or will have it after the last messages.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, FD.pack(fd))] if fd >= 0 else []
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.sendmsg([unsent], rights)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._end_of_words(_why_not_sent(error))
                return
        if sent == 0 and fd >= 0:
            self.close("it does not read: no room for the shared memory")
        elif sent < len(unsent):
            self._unsent += unsent[sent:]
            if len(self._unsent) > UNSENT_BYTES_MAX:
                self.close(f"it left {len(self._unsent)} bytes unread")
            else:
                self._loop.add_writer(self._socket, self._on_writable)

    def refuse(self, why: str) -> None:
        """Send the reason, read nothing more, and close soon: the rank exits by itself."""
        self.send(RankRefused(why=why))
        if self._socket.fileno() < 0:
            return
        self._refused = why
        self._timer.cancel()
        self._timer = self._loop.call_later(REFUSED_LINGER_S, self.close, why)

    def close(self, why: str, *, ended: bool = False) -> None:
        """Close the socket, which ends the rank if it still runs freely; idempotent."""
        if self._socket.fileno() < 0:
            return
        self._reading = False
        self._incoming.stream.clear()
        self._timer.cancel()
        if self._process is not None:
            self._process.unwatch()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._server.inbox.put_nowait((self, Closed(self._refused or why, ended)))
        if not self._identified:
            self.end()

    def end(self, *, kill: bool = True) -> None:
        """Close, and SIGKILL the process if it is a rank of this node. Idempotent."""
        self.close("its attempt is over")
        links = self._server.links
        if self not in links:
            return
        if self._process is not None:
            if self._identified and kill:
                self._process.kill()
            self._process.close()
        links.discard(self)

    def taken(self) -> None:
        """For the server: a message of this link left the inbox. Reads on where it was full."""
        self._incoming.unread -= 1
        if not self._reading:
            self._hand_over()

    def _on_process_end(self) -> None:
        self._end_of_words("its process has ended")

    def _end_of_words(self, why: str) -> None:
        """The rank is gone, but its earlier messages still count: shut the socket down, so that no
        process (a child of it neither) can send more, and reading ends after the last message."""
        if self._ending:
            return
        self._ending = why
        self._unsent.clear()
        self._loop.remove_writer(self._socket)
        self._socket.shutdown(socket.SHUT_RD)

    def _on_readable(self) -> None:
        # Until nothing is left: a rank that ends without having read our last message resets the
        # stream, which libuv reports once only, and its own last messages come before that.
        for _ in range(READS_IN_A_ROW_MAX):
            if not self._reading or not self._read():
                return
        self._loop.call_soon(self._on_readable)

    def _read(self) -> bool:
        """False when nothing is left for now."""
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""  # As at the end of the stream, but it left something of ours unread.
        except OSError as error:
            self.close(f"its connection broke: {error}", ended=True)
            return False
        if not data:
            self.close(self._ending or "it closed its connection", ended=True)
            return False
        self._incoming.stream += data
        self._hand_over()
        return True

    def _hand_over(self) -> None:
        """Put complete messages into the inbox while it has room, and read on only then: a rank
        that sends too much holds up only itself."""
        incoming = self._incoming
        if self._refused:
            incoming.stream.clear()
        try:
            while (message := incoming.take()) is not None:
                if self._identified and isinstance(message, Obeyed):
                    self._server.obeyed(self, message)
                else:
                    incoming.unread += 1
                    self._server.inbox.put_nowait((self, message))
        except LinkError as error:
            if self._identified:
                self.close(str(error))
            else:
                self.refuse(str(error))
        if self._socket.fileno() < 0:
            return
        reads = incoming.unread < UNREAD_MESSAGES_MAX
        if reads and not self._reading:
            self._loop.add_reader(self._socket, self._on_readable)
        elif self._reading and not reads:
            self._loop.remove_reader(self._socket)
        self._reading = reads

    def _on_writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            self._end_of_words(_why_not_sent(error))
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket)


class DaemonSocketServer:
    """Accepts processes of the same user, at most `links_max` at a time."""

    def __init__(
        self, path: str, *, links_max: int, obeyed: Callable[[DaemonSocket, Obeyed], None]
    ) -> None:
        """Listen at once, inside a running event loop. `obeyed` must not raise; it is called at
        once with each Obeyed, since a turn through the inbox costs as much as a small payload.
        Raises OSError if the path is taken."""
        self.loop = asyncio.get_running_loop()
        self.obeyed = obeyed
        self.links: set[DaemonSocket] = set()
        self._in_a_row = 0
        """Messages handled since other tasks had their turn."""
        # Bounded by links_max * (UNREAD_MESSAGES_MAX + 1): each link limits its own messages.
        # A rank on another host waits until its connection is read.
        self.inbox: Inbox = asyncio.Queue()
        self._links_max = links_max
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            self._listener.bind(path)
            self._listener.listen(links_max)
        except OSError:
            self._listener.close()
            raise
        self.loop.add_reader(self._listener, self._on_connection)

    async def receive(self) -> tuple[RankLink, RankMessage | Closed]:
        """The next message of any link."""
        # A flood delays others, it does not stop them. But of ranks that ask at the same boundary
        # none waits for a turn of the loop for each: turns are long while payload moves.
        self._in_a_row = (self._in_a_row + 1) % MESSAGES_IN_A_ROW_MAX
        if not self._in_a_row:
            await asyncio.sleep(0)
        link, message = await self.inbox.get()
        if not isinstance(message, Closed):
            link.taken()
        return link, message

    def end_links(self, *, kill: bool = True) -> None:
        """SIGKILL every rank that said hello, close every link."""
        for link in tuple(self.links):
            link.end(kill=kill)

    def close(self) -> None:
        """End the links and stop listening; idempotent. The path is left to its directory."""
        self.end_links()
        if self._listener.fileno() >= 0:
            self.loop.remove_reader(self._listener)
            self._listener.close()

    def _on_connection(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # The other side has closed it again.
        connection.setblocking(False)
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid != os.geteuid() or len(self.links) >= self._links_max:
            connection.close()
            return
        try:
            self.links.add(DaemonSocket(connection, pid=pid, server=self))
        except OSError:
            # Its process is in a namespace not visible here, and could not be ended.
            connection.close()


def _why_not_sent(error: OSError) -> str:
    if isinstance(error, BrokenPipeError | ConnectionResetError):
        return "it closed its connection"
    return f"cannot send: {error}"
