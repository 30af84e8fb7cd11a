"""Connections with every other peer: one for control, one for bulk; dialling and hellos.

A peer counts as connected when both are up, and as disconnected when either is gone. Must NOT
decide whom to connect to, whom to let in or what a loss means: the core does.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from peers.address import format_address, parse_address
from peers.link import BULK_WRITE_BYTES_MAX, Frame, Link
from protocols.errors import ConfigError
from protocols.ids import PROTOCOL_VERSION, PeerId
from protocols.messages import BulkHello, Chunk, Control, Hello, Message, Refused

DIAL_TIMEOUT_S = 5.0
HELLO_TIMEOUT_S = 5.0
"""A connection that has not said who it is by then is closed."""
REDIAL_DELAYS_S = (0.05, 0.1, 0.2, 0.5, 1.0)
FIRST_DIAL_S = 30.0
"""How long the address that a person typed may not answer."""
EARLY_MAX = 64
"""Control messages that may come before the bulk connection does."""
CLOSE_LINGER_S = 1.0
"""What is queued at the end has this long to go out."""
BACKLOG = 256
STRANGERS_MAX = 64
"""Connections that have not said hello yet."""


def bind(address: str) -> tuple[socket.socket, str]:
    """Listen on HOST:PORT; return the socket and the address with the port that was taken.

    Raises ConfigError when it cannot be had.
    """
    host, port = parse_address(address, key="node.listen")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"node.listen: cannot listen on {address}: {error.strerror or error}; "
            "choose another port, or 0 for a free one"
        ) from error
    bound.setblocking(False)
    name = bound.getsockname()
    return bound, format_address(str(name[0]), int(name[1]))


class MeshOwner(Protocol):
    """What a mesh tells whoever made it. No method may raise or block."""

    def hello(self) -> Hello:
        """Who we are, at this moment."""
        ...

    def refusal(self, hello: Hello) -> str:
        """Why this peer is not let in; "": it is."""
        ...

    def connected(self, hello: Hello) -> None: ...

    def disconnected(self, peer: PeerId, why: str) -> None: ...

    def received(self, peer: PeerId, message: Control) -> None: ...

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None: ...

    def chunk_received(self, peer: PeerId, chunk: Chunk) -> None: ...

    def refused(self, why: str) -> None:
        """The peer whose address a person gave does not answer, or does not want us."""
        ...


@dataclass(slots=True)
class Session:
    """The two connections with one peer."""

    hello: Hello
    control: Link
    bulk: Link | None = None
    address: str = ""
    """Where we dialled it; empty if it dialled us."""
    early: list[Control] = field(default_factory=list[Control])
    """What came on the control connection before the bulk connection was there."""


@dataclass(slots=True)
class Dial:
    """An address that we keep trying until `disconnect`."""

    address: str
    peer: str
    task: "asyncio.Task[None] | None" = None
    answer: "asyncio.Future[Hello | Refused] | None" = None


class Mesh:
    """`listen`, then `connect` and `send`; `close` ends everything."""

    def __init__(
        self,
        owner: MeshOwner,
        *,
        tls: ssl.SSLContext | None = None,
        on_chunk_sent: Callable[[PeerId, Message, Link], None] | None = None,
    ) -> None:
        """`tls` None is plaintext. `on_chunk_sent` is for fault injection."""
        self.sessions: dict[PeerId, Session] = {}
        self.sent_bytes = 0
        self.received_bytes = 0
        """Of connections that are over; `bytes_moved` adds the open ones."""
        self._owner = owner
        self._tls = tls
        self._on_chunk_sent = on_chunk_sent
        self._server: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._strangers: dict[Link, asyncio.TimerHandle] = {}
        self._dials: dict[str, Dial] = {}
        """By address."""
        self._dialling: dict[Link, Dial] = {}
        self._closing = False
        self._changed = asyncio.Event()
        """A link ended."""

    # Interface ------------------------------------------------------------------------------

    async def listen(self, bound: socket.socket) -> None:
        """Accept on a socket that `bind` made."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=bound, ssl=self._tls)

    def connect(self, address: str, *, peer: str) -> None:
        """Dial until it works, and again when it breaks, until `disconnect`."""
        if address in self._dials or self._closing:
            return
        dial = Dial(address, peer)
        self._dials[address] = dial
        dial.task = asyncio.get_running_loop().create_task(self._dial(dial), name=f"dial {address}")

    def disconnect(self, peer: PeerId, why: str) -> None:
        """Close what we have with the peer, and dial it no more."""
        for address in [a for a, dial in self._dials.items() if dial.peer == peer]:
            dial = self._dials.pop(address)
            if dial.task is not None:
                dial.task.cancel()
        session = self.sessions.get(peer)
        if session is not None:
            self._end(session, why)

    def drop(self, peer: PeerId, why: str) -> None:
        """Close what we have with the peer; whoever dialled dials again."""
        session = self.sessions.get(peer)
        if session is not None:
            self._end(session, why)

    def send(self, peer: PeerId, message: Control) -> bool:
        """False: the peer's outbox is full."""
        session = self.sessions.get(peer)
        return session is None or session.control.send(message)

    def send_bulk(self, peer: PeerId, frames: Iterator[Frame]) -> bool:
        """False: the peer's outbox is full."""
        session = self.sessions.get(peer)
        return session is None or session.bulk is None or session.bulk.send_bulk(frames)

    def bytes_moved(self) -> tuple[int, int]:
        """(sent, received) since the start, framing included."""
        sent = self.sent_bytes + sum(link.sent_bytes for link in self._links)
        received = self.received_bytes + sum(link.received_bytes for link in self._links)
        return sent, received

    async def close(self) -> None:
        """End every connection and task; idempotent."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        tasks = [dial.task for dial in self._dials.values() if dial.task is not None]
        self._dials.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._strangers.values():
            timer.cancel()
        for link in list(self._links):
            link.close("closing")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LINGER_S):
                await self._no_links()
        for link in list(self._links):
            link.abort()
        await self._no_links()
        if self._server is not None:
            await self._server.wait_closed()

    async def _no_links(self) -> None:
        while self._links:
            self._changed.clear()
            await self._changed.wait()

    # Links ----------------------------------------------------------------------------------

    def _new_link(self) -> Link:
        link = Link(self)
        self._links.add(link)
        return link

    def _accept(self) -> Link:
        link = self._new_link()
        loop = asyncio.get_running_loop()
        self._strangers[link] = loop.call_later(HELLO_TIMEOUT_S, link.close, "no hello in time")
        if len(self._strangers) > STRANGERS_MAX:
            # The oldest stranger makes room: nobody can fill the table by waiting.
            next(iter(self._strangers)).close("too many strangers")
        return link

    def received(self, link: Link, message: Message) -> None:
        """A control message, or the hello that makes a stranger known."""
        if link in self._dialling:
            self._answered(self._dialling[link], message)
        elif link in self._strangers:
            self._strangers.pop(link).cancel()
            self._introduce(link, message)
        elif isinstance(message, Hello | BulkHello | Chunk):
            link.close("a second hello")
        else:
            session = self.sessions.get(PeerId(link.peer))
            if session is None or session.control is not link:
                return  # Of a connection that was replaced.
            if session.bulk is not None:
                self._owner.received(session.hello.peer, message)
            elif len(session.early) < EARLY_MAX:
                session.early.append(message)
            else:
                link.close("no bulk connection")

    def place(self, link: Link, chunk: Chunk, size: int) -> memoryview | None:
        return self._owner.place(PeerId(link.peer), chunk, size)

    def chunk_received(self, link: Link, chunk: Chunk) -> None:
        self._owner.chunk_received(PeerId(link.peer), chunk)

    def closed(self, link: Link, why: str) -> None:
        self._links.discard(link)
        self._changed.set()
        self.sent_bytes += link.sent_bytes
        self.received_bytes += link.received_bytes
        timer = self._strangers.pop(link, None)
        if timer is not None:
            timer.cancel()
        dial = self._dialling.pop(link, None)
        if dial is not None and dial.answer is not None and not dial.answer.done():
            dial.answer.set_exception(ConnectionError(f"closed before its hello: {why}"))
        session = self.sessions.get(PeerId(link.peer))
        if session is not None and link in (session.control, session.bulk):
            self._end(session, why)

    def _end(self, session: Session, why: str) -> None:
        peer = session.hello.peer
        if self.sessions.get(peer) is not session:
            return
        del self.sessions[peer]
        complete = session.bulk is not None
        for link in (session.control, session.bulk):
            if link is not None:
                link.close(why)
        if complete and not self._closing:
            self._owner.disconnected(peer, why)
        dial = self._dials.get(session.address)
        if dial is not None and not self._closing:
            dial.task = asyncio.get_running_loop().create_task(
                self._dial(dial), name=f"dial {dial.address}"
            )

    # Hellos ---------------------------------------------------------------------------------

    def _introduce(self, link: Link, message: Message) -> None:
        """The first message of a connection that somebody else made."""
        if isinstance(message, Hello):
            why = self._owner.refusal(message)
            if why:
                link.send(Refused(why))
                link.close_after_sending("refused")
                return
            self._replace(message.peer)
            link.peer = message.peer
            self.sessions[message.peer] = Session(message, link)
            link.send(self._owner.hello())
        elif isinstance(message, BulkHello):
            session = self.sessions.get(message.peer)
            expected = session is not None and session.bulk is None and not session.address
            if session is None or not expected or session.hello.incarnation != message.incarnation:
                link.close("a bulk connection without its control connection")
                return
            self._attach_bulk(session, link)
        else:
            link.close("no hello")

    def _replace(self, peer: PeerId) -> None:
        old = self.sessions.get(peer)
        if old is not None:
            self._end(old, "it connected anew")

    def _attach_bulk(self, session: Session, link: Link) -> None:
        link.bulk, link.peer = True, session.hello.peer
        link.limit_writes(BULK_WRITE_BYTES_MAX)
        session.bulk = link
        if self._on_chunk_sent is not None:
            hook, peer = self._on_chunk_sent, session.hello.peer
            link.on_chunk_sent = lambda message: hook(peer, message, link)
        self._owner.connected(session.hello)
        for message in session.early:
            self._owner.received(session.hello.peer, message)
        session.early.clear()

    # Dialling -------------------------------------------------------------------------------

    async def _dial(self, dial: Dial) -> None:
        """Try until both connections are up."""
        loop = asyncio.get_running_loop()
        started, tries = loop.time(), 0
        while not self._closing:
            try:
                async with asyncio.timeout(DIAL_TIMEOUT_S):
                    refused = await self._dial_once(dial)
            except (OSError, TimeoutError) as error:
                refused = ""
                if not dial.peer and loop.time() - started > FIRST_DIAL_S:
                    refused = f"nobody answers at {dial.address}: {error or 'timeout'}"
            else:
                if not refused:
                    return
            if refused:
                self._dials.pop(dial.address, None)
                self._owner.refused(refused)
                return
            await asyncio.sleep(REDIAL_DELAYS_S[min(tries, len(REDIAL_DELAYS_S) - 1)])
            tries += 1

    async def _dial_once(self, dial: Dial) -> str:
        """Returns why the other side refused us, or "". Raises OSError when it did not work."""
        dial.answer = asyncio.get_running_loop().create_future()
        control = await self._open(dial)
        bulk: Link | None = None
        try:
            self._dialling[control] = dial
            control.send(self._owner.hello())
            answer = await dial.answer
            if not isinstance(answer, Hello):
                return f"refused by {dial.address}: {answer.why}"
            bulk = await self._open(dial)
            if control not in self._dialling:
                raise ConnectionError("closed after its hello")
            me = self._owner.hello()
            bulk.send(BulkHello(PROTOCOL_VERSION, me.run, me.peer, me.incarnation))
            self._replace(answer.peer)
            dial.peer = answer.peer
            control.peer = answer.peer
            session = Session(answer, control, address=dial.address)
            self.sessions[answer.peer] = session
            self._dialling.pop(control, None)
            self._attach_bulk(session, bulk)
        finally:
            if not control.peer:
                self._dialling.pop(control, None)
                dial.answer.cancel()
                for link in (control, bulk):
                    if link is not None:
                        link.close("dialling failed")
        return ""

    def _answered(self, dial: Dial, message: Message) -> None:
        """The first message on a control connection that we made."""
        if dial.answer is None or dial.answer.done():
            return
        if isinstance(message, Hello):
            other = dial.peer and dial.peer != message.peer
            if other or message.protocol != PROTOCOL_VERSION:
                dial.answer.set_result(
                    Refused(f"it is {message.peer} and speaks protocol {message.protocol}")
                )
            else:
                dial.answer.set_result(message)
        elif isinstance(message, Refused):
            dial.answer.set_result(message)
        else:
            dial.answer.set_exception(ConnectionError("no hello"))

    async def _open(self, dial: Dial) -> Link:
        host, port = parse_address(dial.address, key="address")
        loop = asyncio.get_running_loop()
        link = self._new_link()
        try:
            await loop.create_connection(lambda: link, host, port, ssl=self._tls)
        except BaseException:
            self._links.discard(link)
            raise
        return link
