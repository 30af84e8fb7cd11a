"""The connections with one peer, connections on their way to that, and the owner of a mesh.

Must NOT decide which peer is refused (the owner), nor open a connection.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from peers.connections.bulk import Bulk, BulkOwner
from peers.connections.control import Link
from peers.connections.encryption import Tickets
from peers.connections.frames import Frame
from peers.sockets.rate_limit import RateLimit
from peers.sockets.tcp_info import NO_LINE, NOTHING, Flow, Line
from protocols.messages import Admit, Admitted, BulkKeys, Control, Hello, NotAdmitted, Refused
from protocols.types import PEERS_MAX, PeerId

ANSWER_TIMEOUT_S = 15.0
"""Seconds that a node without a certificate waits for the run's answer."""
SESSIONS_MAX = 2 * PEERS_MAX
"""Peers of a run, and as many again that wait or are leaving."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS contexts of control connections; one context cannot serve both roles."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext


class MeshOwner(BulkOwner, Protocol):
    """Callbacks of a mesh to its owner. No method may raise or block."""

    def hello(self) -> Hello:
        """The present hello of this peer."""
        ...

    def refusal(self, hello: Hello) -> str:
        """Why the sender of a hello is refused; "" if it is not."""
        ...

    def peer_connected(self, hello: Hello) -> None: ...

    def disconnected(self, peer: PeerId, why: str, *, lives: bool) -> None:
        """`lives`: the peer said that its process goes on."""
        ...

    def bytes_received(self, peer: PeerId) -> None:
        """Bytes of a message that is not complete yet."""
        ...

    def received(self, peer: PeerId, message: Control) -> None: ...

    def next_chunk(self, peer: PeerId) -> Frame | None:
        """The next chunk for this peer; None: nothing until `wake`."""
        ...

    def padding_bytes(self, peer: PeerId) -> int:
        """Bytes of padding that are worth sending to this peer to find out the rate of its line."""
        ...

    def is_revoked(self, peer: PeerId) -> bool:
        """Is the certificate of this peer revoked?"""
        ...

    def barred(self, peer: PeerId, why: str) -> None:
        """A peer that we dialled reports our certificate as revoked."""
        ...

    def is_member(self, peer: PeerId) -> bool:
        """Is the peer a member of the run, so that tunnels to it may go through us?"""
        ...

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None:
        """`size` bytes of a tunnel went through us from `source` to `sink`."""
        ...

    def admission_asked(self, number: int, admit: Admit) -> None:
        """A node without a certificate asks for one; `Mesh.answer` takes the answer."""
        ...

    def refused(self, why: str) -> None:
        """The address that a person gave does not answer, or refuses us."""
        ...


@dataclass(frozen=True, slots=True)
class Half:
    """A control connection that waits for its bulk connection; it delivers no message yet."""

    hello: Hello
    control: Link


@dataclass(slots=True)
class Watched:
    """A bulk connection with its figures."""

    flow: Flow = NOTHING
    """Its flow at the last check for another connection."""
    throttle: RateLimit = field(default_factory=RateLimit)


@dataclass(slots=True, eq=False)
class Session:
    """The connections with one peer."""

    hello: Hello
    control: Link
    address: str
    """The address that we dialled; "" if the peer dialled us."""
    bulks: dict[Bulk, Watched] = field(default_factory=dict[Bulk, Watched])
    ticket: bytes = b""
    """If we dialled: the last used ticket, which may be offered again until it has arrived."""
    dialling: bool = False
    """Another bulk connection is being opened."""
    line: Line = NO_LINE
    far: bool = False
    """Round trips are long."""

    @property
    def congested(self) -> bool:
        """There is more bulk data to send than the other side takes."""
        return any(bulk.congested for bulk in self.bulks)


class OpenConnections:
    """The open connections of a mesh, those of no session too, and the bytes of all that were."""

    def __init__(self, bulks: Set[Bulk]) -> None:
        """`bulks`: the table of the object that makes them."""
        self.links: set[Link] = set()
        self._bulks = bulks
        self._sent_bytes = self._received_bytes = 0
        """Bytes on connections that have ended."""
        self._changed = asyncio.Event()
        """Set when a connection has ended."""

    def ended(self, connection: Link | Bulk) -> None:
        """A connection has ended, and is in its table no more."""
        self._sent_bytes += connection.sent_bytes
        self._received_bytes += connection.received_bytes
        self._changed.set()

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes (sent, received) since the start, with framing."""
        sent, received = self._sent_bytes, self._received_bytes
        for each in (*self.links, *self._bulks):
            sent, received = sent + each.sent_bytes, received + each.received_bytes
        return sent, received

    async def close(self) -> None:
        """Close all, and wait until they have ended: each does so by itself after LINGER_S at the
        latest."""
        for each in (*self.links, *self._bulks):
            each.close("closing")
        while self.links or self._bulks:
            self._changed.clear()
            await self._changed.wait()


class HalfOpen:
    """The accepted control connections that wait for their bulk connection: one for each peer."""

    def __init__(
        self, sessions: Mapping[PeerId, Session], owner: MeshOwner, tickets: Tickets
    ) -> None:
        """`sessions`: the mesh's own table."""
        self._sessions = sessions
        self._owner = owner
        self._tickets = tickets
        self._halves: dict[PeerId, Half] = {}

    def __len__(self) -> int:
        return len(self._halves)

    def take_hello(self, link: Link, hello: Hello, *, certified: bool) -> None:
        """Handle the hello of an accepted connection. `certified`: with a certificate."""
        if link.peer or not link.accepted:
            link.close("a second hello")
        elif certified and hello.peer != link.certified:
            link.close(f"it has the certificate of {link.certified}, and is another peer")
        else:
            self._answer(link, hello)

    def _answer(self, link: Link, hello: Hello) -> None:
        old = self._sessions.get(hello.peer)
        why = self._owner.refusal(hello)
        if not why and old is None and len(self._sessions) >= SESSIONS_MAX:
            why = f"there are {SESSIONS_MAX} connections already"
        if why:
            link.send(Refused(why, self._owner.is_revoked(hello.peer)))
            link.close(f"refused: {why}")
            return
        same = old is not None and old.hello.incarnation == hello.incarnation
        if same and old is not None and old.address and self._goes_first(hello.peer):
            link.close("we dialled it already")
            return
        self.drop(hello.peer, "it connected again")
        link.become(hello.peer)
        link.pause()
        self._halves[hello.peer] = Half(hello, link)
        link.send(self._owner.hello())
        link.send(BulkKeys(self._tickets.give(link)))

    def take(self, control: Link) -> Half | None:
        """The connection ends, or becomes a session; None if it is not one of these."""
        half = self._halves.get(PeerId(control.peer))
        if half is None or half.control is not control:
            return None
        return self._halves.pop(half.hello.peer)

    def drop(self, peer: PeerId, why: str) -> None:
        """Close the connection of this peer."""
        half = self._halves.pop(peer, None)
        if half is not None:
            self._tickets.void(half.control)
            half.control.close(why)

    def yields_to(self, peer: PeerId) -> bool:
        """Does a connection that this peer made win over one that we make?"""
        if peer in self._sessions:
            return True
        return peer in self._halves and not self._goes_first(peer)

    def _goes_first(self, peer: PeerId) -> bool:
        """If two peers dial each other at once, the connection of the smaller id wins."""
        return self._owner.hello().peer < peer


class CertificateRequests:
    """The connections without a certificate that wait for one."""

    def __init__(self, owner: MeshOwner, extend: Callable[[Link, float, str], None]) -> None:
        """`extend(link, seconds, why)`: the connection may wait so long, and is then closed."""
        self._owner = owner
        self._extend = extend
        self._asking: dict[int, Link] = {}
        """By number of a request, its connection."""
        self._asked = 0

    def __len__(self) -> int:
        return len(self._asking)

    def handle_message(self, link: Link, message: Control) -> None:
        """Handle the only message of a connection without a certificate."""
        if not isinstance(message, Admit) or link in self._asking.values():
            link.close("it has no certificate, and asks for none, or twice")
            return
        self._extend(link, ANSWER_TIMEOUT_S, "no answer in time")
        self._asked += 1
        self._asking[self._asked] = link
        self._owner.admission_asked(self._asked, message)

    def answer(self, number: int, message: Admitted | NotAdmitted) -> None:
        """Answer the request of this number, if its connection is still open."""
        link = self._asking.pop(number, None)
        if link is not None:
            link.send(message)
            link.close("answered")

    def closed(self, link: Link) -> None:
        self._asking = {n: other for n, other in self._asking.items() if other is not link}
