"""Connections with every other peer: one for control, one for bulk.

A peer counts as connected when both are up, and as disconnected when either is gone. Must NOT
decide whom to connect to, whom to let in or what a loss means: the core does.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from peers.dialing import Dialling
from peers.link import Frame, Link
from peers.listening import BACKLOG
from protocols.ids import PeerId
from protocols.limits import ADMIT_BYTES_MAX, PEERS_MAX
from protocols.messages import (
    Admit,
    Admitted,
    BulkHello,
    Chunk,
    Control,
    Hello,
    Message,
    NotAdmitted,
    Refused,
)

HELLO_TIMEOUT_S = 5.0
"""A connection that has not become part of a session by then is closed."""
ANSWER_TIMEOUT_S = 15.0
"""Whoever asked for a certificate waits so long for the run's answer, here."""
STRANGERS_MAX = 64
"""Connections that are no part of a session yet."""
OPENING_TURNS = 3
"""asyncio needs so many turns from accepting a connection to telling us of it."""
SESSIONS_MAX = 2 * PEERS_MAX
"""Peers of a run, and as many again that wait or are about to leave."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How connections are secured; one context cannot play both roles."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext


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

    def next_chunk(self, peer: PeerId) -> Frame | None:
        """What to send this peer in bulk; None: nothing, until `wake`."""
        ...

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None: ...

    def chunk_received(self, peer: PeerId, chunk: Chunk) -> None: ...

    def admission_asked(self, number: int, admit: Admit) -> None:
        """Somebody without a certificate asks for one; `Mesh.answer` takes the answer."""
        ...

    def refused(self, why: str) -> None:
        """The peer whose address a person gave does not answer, or does not want us."""
        ...


@dataclass(frozen=True, slots=True)
class Half:
    """A control connection that waits for its bulk connection. It delivers nothing yet."""

    hello: Hello
    control: Link


@dataclass(frozen=True, slots=True)
class Session:
    """The two connections with one peer."""

    hello: Hello
    control: Link
    bulk: Link
    address: str
    """Where we dialled it; empty if it dialled us."""


class Mesh:
    """`listen`, then `connect` and `send`; `close` ends everything."""

    def __init__(
        self,
        owner: MeshOwner,
        *,
        tls: Tls | None = None,
        on_chunk_sent: Callable[[PeerId, Message, Link], None] | None = None,
    ) -> None:
        """`tls` None is plaintext. `on_chunk_sent` is for fault injection."""
        self.sessions: dict[PeerId, Session] = {}
        self._owner = owner
        self._tls = tls
        self._on_chunk_sent = on_chunk_sent
        self._server: asyncio.Server | None = None
        self._dialling = Dialling(self, tls=tls.dialling if tls else None)
        self._links: set[Link] = set()
        self._strangers: dict[Link, asyncio.TimerHandle] = {}
        """Accepted, and no part of a session; the oldest first."""
        self._asking: dict[int, Link] = {}
        """Strangers that asked for a certificate, by the number under which they did."""
        self._asked = 0
        self._halves: dict[PeerId, Half] = {}
        self._moved = [0, 0]
        """Bytes sent and received on connections that are over."""
        self._closing = False
        self._changed = asyncio.Event()
        """A link ended."""

    # Interface ------------------------------------------------------------------------------

    def secure(self, tls: Tls) -> None:
        """Before `listen`, as a node that gets its certificate later than its mesh."""
        self._tls, self._dialling.tls = tls, tls.dialling

    async def listen(self, bound: socket.socket) -> None:
        """Accept on a socket that `bind` made."""
        loop = asyncio.get_running_loop()
        if self._tls is None:
            self._server = await loop.create_server(self._accept, sock=bound, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(
                self._accept,
                sock=bound,
                backlog=BACKLOG,
                ssl=self._tls.accepting,
                ssl_handshake_timeout=HELLO_TIMEOUT_S,
            )

    def connect(self, address: str, *, peer: str) -> None:
        """Dial until it works, and again when it breaks, until `disconnect`."""
        self._dialling.connect(address, peer=peer)

    def disconnect(self, peer: PeerId, why: str) -> None:
        """Close what we have with the peer, and dial it no more."""
        self._dialling.forget(peer)
        self._drop_half(peer, why)
        self.drop(peer, why)

    def drop(self, peer: PeerId, why: str) -> None:
        """Close what we have with the peer; whoever dialled dials again."""
        session = self.sessions.get(peer)
        if session is not None:
            self._end(session, why)

    def send(self, peer: PeerId, message: Control) -> bool:
        """False: the peer's outbox is full."""
        session = self.sessions.get(peer)
        return session is None or session.control.send(message)

    def wake(self, peer: PeerId) -> None:
        """There is something to send in bulk."""
        session = self.sessions.get(peer)
        if session is not None:
            session.bulk.wake()

    def answer(self, number: int, message: Admitted | NotAdmitted) -> None:
        """To whoever asked for a certificate under this number, if it is still there."""
        link = self._asking.pop(number, None)
        if link is not None:
            link.send(message)
            link.close("answered")

    def bytes_moved(self) -> tuple[int, int]:
        """(sent, received) since the start, framing included."""
        sent, received = self._moved
        sent += sum(link.sent_bytes for link in self._links)
        return sent, received + sum(link.received_bytes for link in self._links)

    async def close(self) -> None:
        """End every connection and task; idempotent."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        await self._dialling.close()
        for _ in range(OPENING_TURNS):
            await asyncio.sleep(0)
        for link in list(self._links):
            link.close("closing")
        while self._links:  # Each ends by itself after LINGER_S at the latest.
            self._changed.clear()
            await self._changed.wait()
        if self._server is not None:
            await self._server.wait_closed()

    # Links ----------------------------------------------------------------------------------

    def _accept(self) -> Link:
        return Link(self, accepted=True)

    def opened(self, link: Link) -> None:
        self._links.add(link)
        if self._closing:
            link.abort("closing")
        elif link.accepted:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(HELLO_TIMEOUT_S, link.close, "no hello in time")
            self._strangers[link] = timer
            if self._is_uncertified(link):
                link.restrict(ADMIT_BYTES_MAX)
            if len(self._strangers) > STRANGERS_MAX:
                # The oldest stranger makes room: nobody can fill the table by waiting.
                oldest = next(iter(self._strangers))
                self._known(oldest)
                oldest.abort("too many strangers")

    def received(self, link: Link, message: Message) -> None:
        """A control message, or the hello that makes a stranger known."""
        if self._dialling.received(link, message):
            return
        if self._is_uncertified(link):
            self._take_admit(link, message)
        elif isinstance(message, Hello | BulkHello | Chunk):
            self._introduce(link, message)
        elif not link.peer:
            link.close("no hello")
        else:
            session = self.sessions.get(PeerId(link.peer))
            if session is not None and session.control is link:
                self._owner.received(session.hello.peer, message)

    def place(self, link: Link, chunk: Chunk, size: int) -> memoryview | None:
        return self._owner.place(PeerId(link.peer), chunk, size)

    def chunk_received(self, link: Link, chunk: Chunk) -> None:
        self._owner.chunk_received(PeerId(link.peer), chunk)

    def closed(self, link: Link, why: str) -> None:
        self._links.discard(link)
        self._changed.set()
        self._moved[0] += link.sent_bytes
        self._moved[1] += link.received_bytes
        self._known(link)
        self._asking = {n: other for n, other in self._asking.items() if other is not link}
        self._dialling.closed(link)
        peer = PeerId(link.peer)
        half, session = self._halves.get(peer), self.sessions.get(peer)
        if half is not None and half.control is link:
            del self._halves[peer]
        if session is not None and link in (session.control, session.bulk):
            self._end(session, why)

    def _is_uncertified(self, link: Link) -> bool:
        return self._tls is not None and link.accepted and not link.certified

    def _take_admit(self, link: Link, message: Message) -> None:
        """All that somebody without a certificate may say, and once."""
        if not isinstance(message, Admit) or link in self._asking.values():
            link.close("it has no certificate, and asks for none, or twice")
            return
        self._known(link)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(ANSWER_TIMEOUT_S, link.close, "no answer in time")
        self._strangers[link] = timer
        self._asked += 1
        self._asking[self._asked] = link
        self._owner.admission_asked(self._asked, message)

    def _known(self, link: Link) -> None:
        """It is no stranger any more."""
        timer = self._strangers.pop(link, None)
        if timer is not None:
            timer.cancel()

    # Hellos ---------------------------------------------------------------------------------

    def _introduce(self, link: Link, message: Message) -> None:
        """The first message of a connection that somebody else made."""
        if link.peer or not link.accepted:
            link.close("a second hello")
        elif self._tls is not None and getattr(message, "peer", "") != link.certified:
            link.close(f"it has the certificate of {link.certified}, and is another peer")
        elif isinstance(message, Hello):
            self._take_hello(link, message)
        elif isinstance(message, BulkHello):
            half = self._halves.get(message.peer)
            if half is None or half.hello.incarnation != message.incarnation:
                link.close("a bulk connection without its control connection")
                return
            del self._halves[message.peer]
            self._attach(Session(half.hello, half.control, link, address=""))

    def _take_hello(self, link: Link, hello: Hello) -> None:
        old = self.sessions.get(hello.peer)
        why = self._owner.refusal(hello)
        if not why and old is None and len(self.sessions) >= SESSIONS_MAX:
            why = f"there are {SESSIONS_MAX} connections already"
        if why:
            link.send(Refused(why))
            link.close(f"refused: {why}")
            return
        same = old is not None and old.hello.incarnation == hello.incarnation
        if same and old is not None and old.address and self._goes_first(hello.peer):
            link.close("we dialled it already")
            return
        self._drop_half(hello.peer, "it connected anew")
        link.become(hello.peer, bulk=False)
        link.pause()
        self._halves[hello.peer] = Half(hello, link)
        link.send(self._owner.hello())

    def _goes_first(self, peer: PeerId) -> bool:
        """When two peers dial each other at once, the one with the smaller id goes on."""
        return self._owner.hello().peer < peer

    def _drop_half(self, peer: PeerId, why: str) -> None:
        half = self._halves.pop(peer, None)
        if half is not None:
            half.control.close(why)

    def _attach(self, session: Session) -> None:
        """Both connections are up: from now on they are the ones."""
        peer, control, bulk = session.hello.peer, session.control, session.bulk
        self.drop(peer, "it connected anew")
        self._drop_half(peer, "it connected anew")
        control.become(peer, bulk=False)
        bulk.become(peer, bulk=True)
        if self._on_chunk_sent is not None:
            bulk.on_chunk_sent = lambda message: self._chunk_sent(peer, message, bulk)
            if any(other.bulk.held for other in self.sessions.values()):
                bulk.hold()
        for link in (control, bulk):
            self._known(link)
        self.sessions[peer] = session
        self._owner.connected(session.hello)
        bulk.feed_from(partial(self._owner.next_chunk, peer))
        control.resume()

    def _end(self, session: Session, why: str) -> None:
        peer = session.hello.peer
        if self.sessions.get(peer) is not session:
            return
        del self.sessions[peer]
        for link in (session.control, session.bulk):
            link.close(why)
        if not self._closing:
            self._owner.disconnected(peer, why)
            self._dialling.again(peer)

    def _chunk_sent(self, peer: PeerId, message: Message, link: Link) -> None:
        assert self._on_chunk_sent is not None
        self._on_chunk_sent(peer, message, link)
        if link.held:
            for session in self.sessions.values():
                session.bulk.hold()

    # Dialling's side ------------------------------------------------------------------------

    def hello(self) -> Hello:
        return self._owner.hello()

    def new_link(self) -> Link:
        return Link(self, accepted=False)

    def is_connected(self, peer: str, address: str) -> bool:
        if peer:
            return peer in self.sessions
        return any(session.hello.address == address for session in self.sessions.values())

    def yields_to(self, peer: PeerId) -> bool:
        if peer in self.sessions:
            return True
        return peer in self._halves and not self._goes_first(peer)

    def dialled(self, address: str, hello: Hello, control: Link, bulk: Link) -> None:
        self._attach(Session(hello, control, bulk, address))

    def dialling_refused(self, why: str) -> None:
        self._owner.refused(why)
