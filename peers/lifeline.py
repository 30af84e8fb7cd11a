"""A Unix stream socket between the daemon and each rank: its messages, and the daemon's end.

It carries framed records (`peers/records.py`). The end of the stream is itself the message "I am
gone", in both directions; the
rank's end is `peers/rank_link.py`. Must NOT decide anything: that is `peers/attempt.py`.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from peers.orders import Obeyed, Order
from peers.records import RECORD_BYTES_MAX, LinkError, decode, frame, kinds_of, take_frame
from peers.slots import SlotsShape

UNSENT_BYTES_MAX = 4 * RECORD_BYTES_MAX  # To a rank that asks and never reads.
UNREAD_FRAMES_MAX = 4  # A rank waits for each answer, so more than one is already a fault.
HELLO_TIMEOUT_S = 10.0
"""A connection that has not said hello after this long is closed."""
REFUSED_LINGER_S = 5.0
"""A refused rank has this long to read why: its watcher ends it when we close."""
UNIX_PATH_BYTES_MAX = 107
NONE = (1 << 32) - 1
"""In place of a fragment, in an Answer."""
EXIT_REFUSED = 3
EXIT_DAEMON_GONE = 4
FD = struct.Struct("i")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one parameter lies in its fragment; `offset` counts elements, not bytes."""

    fragment: int
    name: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """rank -> daemon, first. `pid` is for logs; the daemon believes SO_PEERCRED only."""

    rank: int
    world_size: int
    attempt: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """daemon -> rank: `run` and `node` are JSON, `bus` a ZeroMQ endpoint, `corpus` a path."""

    run: str
    node: str
    bus: str
    corpus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """rank -> daemon: all parameters of the model, and how many elements this rank writes."""

    tensors: tuple[TensorPlace, ...]
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """daemon -> rank, with the memfd of this shape. `contribution_generations` and
    `contribution_places` are of each fragment's next contribution; `slot` picks the data split;
    `rank_state` is a directory or ""."""

    shape: SlotsShape
    initial: bool
    slot: int
    rank_state: str
    contribution_generations: tuple[int, ...] = ()
    contribution_places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """rank -> daemon: what this node is told to run cannot work, in no attempt, because of `why`.
    The answer is Refused."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """rank -> daemon, after its inner step number `steps`: contribute one of these fragments now?
    `due`: it is time to; else others may be waiting for us."""

    steps: int
    due: bool
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """daemon -> rank: the same for every rank that asks the same. `fragment`: the one to contribute
    now, or NONE."""

    fragment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """daemon -> rank: print `why` and exit with EXIT_REFUSED."""

    why: str


@dataclass(frozen=True, slots=True)
class Closed:
    """Not on the wire: what the daemon receives last from each link. `ended`: by itself, so that
    the exit status of the process, when it comes, says more."""

    why: str
    ended: bool


RankMessage = Hello | Layout | Unfit | Boundary | Obeyed
DaemonMessage = Configured | Attached | Answer | Order | Refused
_FROM_RANK = kinds_of(Hello, Layout, Unfit, Boundary, Obeyed)


class Lifeline:
    """The daemon's end of one rank's socket: callbacks of the loop, no task. What comes in goes
    to the server's inbox, a `Closed` last; but a rank of ours obeys past the inbox."""

    def __init__(self, connection: socket.socket, *, pid: int, server: "LifelineServer") -> None:
        """Raises OSError when the process has ended already."""
        self.pid = pid
        self.unread = 0
        """Messages of this link in the inbox; `receive` counts down."""
        self._socket = connection
        self._server = server
        self._loop = server.loop
        self._pidfd = os.pidfd_open(pid)
        self._received = bytearray()
        self._unsent = bytearray()
        self._identified = False
        self._refused = ""
        self._timer = self._loop.call_later(HELLO_TIMEOUT_S, self.close, "it never said hello")
        self._loop.add_reader(self._socket, self._on_readable)
        # A forked child of the rank may hold its end of the socket open after its death.
        self._loop.add_reader(self._pidfd, self._on_end)

    def accept(self) -> None:
        """It said a valid hello: it is a rank of ours, to be killed with its attempt."""
        self._identified = True
        self._timer.cancel()

    def send(self, message: DaemonMessage, *, fd: int = -1) -> None:
        """Never blocks; a rank that does not read is closed. Raises LinkError if too large."""
        unsent = frame(message)
        if self._socket.fileno() < 0:
            return  # Closed already; the inbox says so.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, FD.pack(fd))] if fd >= 0 else []
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.sendmsg([unsent], rights)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.close(f"cannot send: {error}", ended=True)
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
        """Tell it why, hear nothing more from it, and close soon: it exits by itself."""
        self.send(Refused(why=why))
        if self._socket.fileno() < 0:
            return
        self._refused = why
        self._timer.cancel()
        self._timer = self._loop.call_later(REFUSED_LINGER_S, self.close, why)

    def close(self, why: str, *, ended: bool = False) -> None:
        """Close the socket, which ends the rank if it still runs freely; idempotent."""
        if self._socket.fileno() < 0:
            return
        self._timer.cancel()
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._server.inbox.put_nowait((self, Closed(self._refused or why, ended)))
        if not self._identified:
            self.end()

    def end(self) -> None:
        """Close, and SIGKILL the process if it was a rank of ours; idempotent."""
        self.close("its attempt is over")
        if self._pidfd < 0:
            return
        if self._identified:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        self._server.links.discard(self)

    def _on_end(self) -> None:
        self.close("its process has ended", ended=True)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"its lifeline broke: {error}", ended=True)
            return
        if not data:
            self.close("it closed its lifeline", ended=True)
            return
        if self._refused:
            return
        self._received += data
        try:
            while (payload := take_frame(self._received)) is not None:
                message = decode(payload, _FROM_RANK)
                if self._identified and isinstance(message, Obeyed):
                    self._server.obeyed(self, message)
                else:
                    self._deliver(message)
        except LinkError as error:
            if self._identified:
                self.close(str(error))
            else:
                self.refuse(str(error))

    def _deliver(self, message: RankMessage) -> None:
        self.unread += 1
        if self.unread > UNREAD_FRAMES_MAX:
            raise LinkError("it does not wait for its answers")
        self._server.inbox.put_nowait((self, message))

    def _on_writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"cannot send: {error}", ended=True)
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket)


class LifelineServer:
    """Accepts processes of our own user, at most `links_max` at a time."""

    def __init__(
        self, path: str, *, links_max: int, obeyed: Callable[[Lifeline, Obeyed], None]
    ) -> None:
        """Listen at once, inside a running loop. `obeyed` must not raise; it is told at once what
        a rank obeyed, since a turn through the inbox costs as much as a small payload does
        otherwise. Raises OSError when the path is taken."""
        self.loop = asyncio.get_running_loop()
        self.obeyed = obeyed
        self.links: set[Lifeline] = set()
        # Bounded by links_max * (UNREAD_FRAMES_MAX + 1): each link limits its own messages.
        self.inbox: asyncio.Queue[tuple[Lifeline, RankMessage | Closed]] = asyncio.Queue()
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

    async def receive(self) -> tuple[Lifeline, RankMessage | Closed]:
        """The next message of any link."""
        link, message = await self.inbox.get()
        link.unread -= type(message) is not Closed
        return link, message

    def end_links(self) -> None:
        """SIGKILL every rank that said hello, close every link."""
        for link in tuple(self.links):
            link.end()

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
            return  # It went away again.
        connection.setblocking(False)
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid != os.geteuid() or len(self.links) >= self._links_max:
            connection.close()
            return
        try:
            self.links.add(Lifeline(connection, pid=pid, server=self))
        except OSError:
            connection.close()  # Its process has ended, or is in a namespace we cannot see.
