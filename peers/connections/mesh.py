"""The connections with all other peers: a control connection and one or more bulk connections each.

A peer is connected when both kinds are open, and disconnected when any of them has ended. Must NOT
decide which peers to dial or admit, nor what a loss means (the core).
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial

from peers.connections.acceptor import Acceptor
from peers.connections.bulk import Bulk, Seals
from peers.connections.bulk_tickets import Tickets
from peers.connections.bulk_tuning import BulkTuning
from peers.connections.control import Link
from peers.connections.dialer import Dialer
from peers.connections.encryption import Keys, Seal
from peers.connections.session import Half, MeshOwner, Session, Tls, Watched
from peers.connections.tunnel_service import TUNNELLING, TunnelService
from peers.sockets.tcp_info import CONNECTIONS_MAX, best, is_far
from protocols.messages import (
    Admit,
    Admitted,
    BulkKeys,
    Chunk,
    Control,
    Hello,
    NotAdmitted,
    Refused,
    WantBulk,
)
from protocols.types import ADMIT_BYTES_MAX, PEERS_MAX, PeerId

ANSWER_TIMEOUT_S = 15.0
"""Seconds that a node without a certificate waits for the run's answer."""
SESSIONS_MAX = 2 * PEERS_MAX
"""Peers of a run, and as many again that wait or are leaving."""


class Mesh:
    """All connections of one peer: `listen`, then `connect` and `send`; `close` ends everything."""

    def __init__(
        self,
        owner: MeshOwner,
        *,
        tls: Tls | None = None,
        on_chunk_sent: Callable[[PeerId, Chunk, Bulk], None] | None = None,
        congestion: str = "",
    ) -> None:
        """`tls` None: unencrypted. `on_chunk_sent`: for fault injection. `congestion`: for bulk."""
        self.sessions: dict[PeerId, Session] = {}
        self._owner = owner
        self._tls = tls
        self._on_chunk_sent, self._congestion = on_chunk_sent, congestion
        self._acceptor = Acceptor(self)
        self._tickets = Tickets()
        self._tunnel_service = TunnelService(self.sessions, owner, self._acceptor.meet)
        self._dialer = Dialer(self, owner, tls=tls.dialling if tls else None)
        self._links: set[Link] = set()
        self._bulks: set[Bulk] = set()
        self._asking: dict[int, Link] = {}
        """By number of a request for a certificate, its connection."""
        self._asked = 0
        self._halves: dict[PeerId, Half] = {}
        self._moved = [0, 0]
        """Bytes [sent, received] on connections that have ended."""
        self._closing = False
        self._changed = asyncio.Event()
        """Set when a connection has ended."""
        self._bulk_tuning = BulkTuning(self.sessions, owner.padding_bytes, self._ask_for_bulk)

    # Interface ------------------------------------------------------------------------------

    def secure(self, tls: Tls) -> None:
        """Set the TLS contexts before `listen`, for a node that gets its certificate after its
        mesh."""
        self._tls, self._dialer.tls = tls, tls.dialling

    def listen(self, bound: socket.socket | None) -> None:
        """Accept on a socket of `bind`, which the mesh owns from now on; None: do not listen."""
        self._acceptor.open(bound, self._tls.accepting if self._tls else None)

    def connect(self, address: str, *, peer: str, via: Sequence[PeerId] = ()) -> None:
        """Dial until it works, and again when it breaks, until `disconnect`. A peer without an
        address is reached through one of `via`."""
        self._dialer.connect(address, peer=peer, via=via)

    def disconnect(self, peer: PeerId, why: str) -> None:
        """Close the session with the peer, and stop dialling it."""
        self._dialer.forget(peer)
        self._drop_half(peer, why)
        self.drop(peer, why)

    def drop(self, peer: PeerId, why: str) -> None:
        """Close the session with the peer; the side that dialled dials again."""
        session = self.sessions.get(peer)
        if session is not None:
            self._end(session, why)

    def send(self, peer: PeerId, message: Control) -> bool:
        """Send a message; False if the peer's outbox is full."""
        session = self.sessions.get(peer)
        return session is None or session.control.send(message)

    @property
    def line(self) -> int:
        """Bytes a second of this node's best line; 0 if no line was ever full."""
        return best([session.line for session in self.sessions.values()])

    def wake(self, peer: PeerId) -> None:
        """There is a chunk to send to this peer."""
        session = self.sessions.get(peer)
        for bulk in list(session.bulks) if session is not None else ():
            bulk.wake()

    def answer(self, number: int, message: Admitted | NotAdmitted) -> None:
        """Answer the request for a certificate of this number, if its connection is still open."""
        link = self._asking.pop(number, None)
        if link is not None:
            link.send(message)
            link.close("answered")

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes (sent, received) since the start, with framing."""
        sent, received = self._moved
        for each in (*self._links, *self._bulks):
            sent, received = sent + each.sent_bytes, received + each.received_bytes
        return sent, received

    async def close(self) -> None:
        """End all connections and tasks. Idempotent."""
        self._closing = True
        self._bulk_tuning.close()
        await self._tunnel_service.close()
        await self._acceptor.close()
        await self._dialer.close()
        for each in (*self._links, *self._bulks):
            each.close("closing")
        while self._links or self._bulks:  # Each ends by itself after LINGER_S at the latest.
            self._changed.clear()
            await self._changed.wait()

    # Links ----------------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        self._links.add(link)
        if self._closing:
            link.abort("closing")
        elif self._is_uncertified(link):
            link.restrict(ADMIT_BYTES_MAX)

    def received(self, link: Link, message: Control) -> None:
        """A message, or the hello of an unauthenticated connection."""
        if self._dialer.received(link, message):
            return
        session = self.sessions.get(PeerId(link.peer))
        if self._is_uncertified(link):
            self._take_admit(link, message)
        elif isinstance(message, Hello):
            self._introduce(link, message)
        elif not link.peer:
            link.close("no hello")
        elif session is not None and session.control is link:
            if isinstance(message, BulkKeys | WantBulk):
                self._widen(session, message)
            elif isinstance(message, TUNNELLING):
                self._tunnel_service.take(session.hello.peer, message)
            else:
                self._owner.received(session.hello.peer, message)

    def closed(self, link: Link, why: str) -> None:
        self._links.discard(link)
        self._over(link)
        self._acceptor.known(link)
        self._tickets.void(link)
        self._asking = {n: other for n, other in self._asking.items() if other is not link}
        self._dialer.closed(link)
        peer = PeerId(link.peer)
        half, session = self._halves.get(peer), self.sessions.get(peer)
        if half is not None and half.control is link:
            del self._halves[peer]
        if session is not None and session.control is link:
            self._end(session, why)

    def _over(self, connection: Link | Bulk) -> None:
        self._moved[0] += connection.sent_bytes
        self._moved[1] += connection.received_bytes
        self._changed.set()

    def _is_uncertified(self, link: Link) -> bool:
        return self._tls is not None and link.accepted and not link.certified

    def _take_admit(self, link: Link, message: Control) -> None:
        """Handle the only message of a connection without a certificate."""
        if not isinstance(message, Admit) or link in self._asking.values():
            link.close("it has no certificate, and asks for none, or twice")
            return
        self._acceptor.extend(link, ANSWER_TIMEOUT_S, "no answer in time")
        self._asked += 1
        self._asking[self._asked] = link
        self._owner.admission_asked(self._asked, message)

    # Hellos ---------------------------------------------------------------------------------

    def _introduce(self, link: Link, hello: Hello) -> None:
        """Handle the hello of an accepted connection."""
        if link.peer or not link.accepted:
            link.close("a second hello")
        elif self._tls is not None and hello.peer != link.certified:
            link.close(f"it has the certificate of {link.certified}, and is another peer")
        else:
            self._take_hello(link, hello)

    def _take_hello(self, link: Link, hello: Hello) -> None:
        old = self.sessions.get(hello.peer)
        why = self._owner.refusal(hello)
        if not why and old is None and len(self.sessions) >= SESSIONS_MAX:
            why = f"there are {SESSIONS_MAX} connections already"
        if why:
            link.send(Refused(why, self._owner.is_revoked(hello.peer)))
            link.close(f"refused: {why}")
            return
        same = old is not None and old.hello.incarnation == hello.incarnation
        if same and old is not None and old.address and self._goes_first(hello.peer):
            link.close("we dialled it already")
            return
        self._drop_half(hello.peer, "it connected again")
        link.become(hello.peer)
        link.pause()
        self._halves[hello.peer] = Half(hello, link)
        link.send(self._owner.hello())
        link.send(BulkKeys(self._tickets.give(link)))

    def _goes_first(self, peer: PeerId) -> bool:
        """If two peers dial each other at once, the connection of the smaller id wins."""
        return self._owner.hello().peer < peer

    def _drop_half(self, peer: PeerId, why: str) -> None:
        half = self._halves.pop(peer, None)
        if half is not None:
            self._tickets.void(half.control)
            half.control.close(why)

    def _attach(self, session: Session, bulk: socket.socket, keys: Keys) -> None:
        """Control and bulk connection are open: they replace earlier ones."""
        peer, control = session.hello.peer, session.control
        self.drop(peer, "it connected again")
        self._drop_half(peer, "it connected again")
        control.become(peer)
        self._acceptor.known(control)
        self.sessions[peer] = session
        session.far = is_far(bulk)
        self._owner.connected(session.hello)
        self._add_bulk(session, bulk, keys)
        control.resume()
        self._bulk_tuning.start()

    def _end(self, session: Session, why: str) -> None:
        peer = session.hello.peer
        if self.sessions.get(peer) is not session:
            return
        del self.sessions[peer]
        self._tickets.void(session.control)
        self._tunnel_service.gone(peer)
        for each in (session.control, *session.bulks):
            each.close(why)
        if not self._closing:
            self._owner.disconnected(peer, why)
            self._dialer.again(peer)

    # Bulk connections -----------------------------------------------------------------------

    def bulk_came(self, connection: socket.socket, ticket: bytes) -> None:
        taken = self._tickets.take(ticket)
        if taken is None or self._closing:
            connection.close()
            return
        control, keys = taken
        peer = PeerId(control.peer)
        half, session = self._halves.get(peer), self.sessions.get(peer)
        if half is not None and half.control is control:
            del self._halves[peer]
            self._attach(Session(half.hello, control, address=""), connection, keys)
        else:  # Tickets end with their session.
            assert session is not None
            assert session.control is control
            self._add_bulk(session, connection, keys)

    def bulk_dialled(self, control: Link, bulk: socket.socket | None, keys: Keys) -> None:
        session = self.sessions.get(PeerId(control.peer))
        if session is not None and session.control is control:
            session.dialling = False
            if bulk is not None:
                session.ticket = keys.ticket
                self._add_bulk(session, bulk, keys)
        elif bulk is not None:
            bulk.close()

    def _bulk_closed(self, bulk: Bulk, why: str) -> None:
        self._bulks.discard(bulk)
        self._over(bulk)
        session = self.sessions.get(bulk.peer)
        if session is not None and bulk in session.bulks:
            self._end(session, why)

    def _add_bulk(self, session: Session, connection: socket.socket, keys: Keys) -> None:
        peer = session.hello.peer
        seals = None
        if self._tls is not None:
            ours, theirs = keys.accepting, keys.dialling
            if session.address:
                ours, theirs = theirs, ours
            seals = Seals(Seal(ours), Seal(theirs))
        bulk = Bulk(
            self._owner,
            peer,
            connection,
            closed=self._bulk_closed,
            seals=seals,
            congestion=self._congestion,
        )
        if self._on_chunk_sent is not None:
            bulk.on_chunk_sent = lambda chunk: self._chunk_sent(peer, chunk, bulk)
            if any(other.held for other in self._bulks):
                bulk.hold()
        self._bulks.add(bulk)
        session.bulks[bulk] = Watched()
        bulk.start()
        bulk.feed_from(partial(self._owner.next_chunk, peer))

    def _chunk_sent(self, peer: PeerId, chunk: Chunk, bulk: Bulk) -> None:
        assert self._on_chunk_sent is not None
        self._on_chunk_sent(peer, chunk, bulk)
        if bulk.held:
            for other in self._bulks:
                other.hold()

    def _ask_for_bulk(self, session: Session) -> None:
        """Ask for another bulk connection."""
        if session.address:
            session.control.send(WantBulk())
        else:
            session.control.send(BulkKeys(self._tickets.give(session.control)))

    def _widen(self, session: Session, message: BulkKeys | WantBulk) -> None:
        """The other side asks for another bulk connection, or answers that."""
        if isinstance(message, BulkKeys) != bool(session.address):
            session.control.close(
                "the accepting side gives keys for bulk connections, the dialling side asks"
            )
        elif len(session.bulks) >= CONNECTIONS_MAX or session.dialling:
            return
        elif isinstance(message, BulkKeys):
            keys = Keys.of(message.secret)
            if keys.ticket != session.ticket:
                session.dialling = True
                self._dialer.open_bulk(session.control, keys)
        else:
            session.control.send(BulkKeys(self._tickets.give(session.control)))

    # Dialling's side ------------------------------------------------------------------------

    def new_link(self, *, accepted: bool) -> Link:
        return Link(self, accepted=accepted)

    def is_connected(self, peer: str, address: str) -> bool:
        if peer:
            return peer in self.sessions
        return any(session.hello.address == address for session in self.sessions.values())

    def yields_to(self, peer: PeerId) -> bool:
        if peer in self.sessions:
            return True
        return peer in self._halves and not self._goes_first(peer)

    async def tunnel(self, peer: PeerId, relay: PeerId) -> socket.socket:
        return await self._tunnel_service.open(peer, relay)

    def tunnel_end_came(self, connection: socket.socket, ticket: bytes) -> None:
        self._tunnel_service.end_came(connection, ticket)

    def dialled(
        self, address: str, hello: Hello, control: Link, bulk: socket.socket, keys: Keys
    ) -> None:
        self._attach(Session(hello, control, address, ticket=keys.ticket), bulk, keys)

    def dialling_refused(self, why: str) -> None:
        self._owner.refused(why)
