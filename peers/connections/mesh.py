"""The connections with all other peers: a control connection and one or more bulk connections each.

A peer is connected when both kinds are open, and disconnected when any of them has ended. Must NOT
decide which peers to dial or admit, nor what a loss means (the core).
"""

import socket
from collections.abc import Callable, Sequence
from functools import partial

from peers.connections.acceptor import Acceptor
from peers.connections.bulk import Bulk
from peers.connections.bulk_connections import BulkConnections
from peers.connections.control import Link
from peers.connections.dialer import Dialer
from peers.connections.encryption import Keys, Tickets
from peers.connections.session import (
    CertificateRequests,
    HalfOpen,
    MeshOwner,
    OpenConnections,
    Session,
    Tls,
)
from peers.connections.tunnel_service import TUNNELLING, TunnelService
from peers.sockets.tcp_info import best, is_far
from protocols.messages import (
    Admitted,
    BulkKeys,
    Chunk,
    Control,
    Disconnecting,
    Hello,
    NotAdmitted,
    WantBulk,
)
from protocols.types import ADMIT_BYTES_MAX, PeerId


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
        self._tls: Tls | None = None
        self._tickets = tickets = Tickets()
        self._half_open = HalfOpen(self.sessions, owner, tickets)
        self._acceptor = Acceptor(self)
        self._certificate_requests = CertificateRequests(owner, self._acceptor.extend)
        self._tunnel_service = TunnelService(self.sessions, owner, self._acceptor.meet)
        self._dialer = Dialer(self, owner, tunnel=self._tunnel_service.open_tunnel)
        self._bulk_connections = BulkConnections(
            self.sessions,
            owner,
            tickets,
            dial=self._dialer.open_bulk,
            ended=self._bulk_ended,
            on_chunk_sent=on_chunk_sent,
            congestion=congestion,
        )
        self._open = OpenConnections(self._bulk_connections.open)
        self._closing = False
        if tls is not None:
            self.secure(tls)

    # Interface ------------------------------------------------------------------------------

    def secure(self, tls: Tls) -> None:
        """Set the TLS contexts before `listen`, for a node that gets its certificate after its
        mesh."""
        self._tls, self._dialer.tls = tls, tls.dialling
        self._bulk_connections.encrypted = True

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
        self._half_open.drop(peer, why)
        self.drop_session(peer, why)

    def drop_session(self, peer: PeerId, why: str) -> None:
        """Close the session with the peer; the side that dialled dials again."""
        session = self.sessions.get(peer)
        if session is not None:
            self._end_session(session, why)

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
        self._certificate_requests.answer(number, message)

    def dial_faults(self) -> dict[str, str]:
        """By dialled address without a session, why the last try failed."""
        return self._dialer.faults()

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes (sent, received) since the start, with framing."""
        return self._open.bytes_moved()

    async def close(self) -> None:
        """End all connections and tasks. Idempotent."""
        self._closing = True
        self._bulk_connections.stop_tuning()
        await self._tunnel_service.close()
        await self._acceptor.close()
        await self._dialer.close()
        await self._open.close()

    # Links ----------------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        self._open.links.add(link)
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
            self._certificate_requests.handle_message(link, message)
        elif isinstance(message, Hello):
            self._half_open.take_hello(link, message, certified=self._tls is not None)
        elif not link.peer:
            link.close("no hello")
        elif session is not None and session.control is link:
            if isinstance(message, Disconnecting):
                self._end_session(session, f"it disconnects: {message.why}", lives=True)
            elif isinstance(message, BulkKeys | WantBulk):
                self._bulk_connections.widen(session, message)
            elif isinstance(message, TUNNELLING):
                self._tunnel_service.handle_message(session.hello.peer, message)
            else:
                self._owner.received(session.hello.peer, message)

    def closed(self, link: Link, why: str) -> None:
        self._open.links.discard(link)
        self._open.ended(link)
        self._acceptor.known(link)
        self._tickets.void(link)
        self._certificate_requests.closed(link)
        self._dialer.closed(link)
        self._half_open.take(link)
        session = self.sessions.get(PeerId(link.peer))
        if session is not None and session.control is link:
            self._end_session(session, why)

    def _is_uncertified(self, link: Link) -> bool:
        return self._tls is not None and link.accepted and not link.certified

    # Sessions -------------------------------------------------------------------------------

    def _attach(self, session: Session, bulk: socket.socket, keys: Keys) -> None:
        """Control and bulk connection are open: they replace earlier ones."""
        peer, control = session.hello.peer, session.control
        self.drop_session(peer, "it connected again")
        self._half_open.drop(peer, "it connected again")
        control.become(peer, partial(self._owner.bytes_received, peer))
        self._acceptor.known(control)
        self.sessions[peer] = session
        session.far = is_far(bulk)
        self._owner.peer_connected(session.hello)
        self._bulk_connections.add(session, bulk, keys)
        control.resume()
        self._bulk_connections.tune()

    def _end_session(self, session: Session, why: str, *, lives: bool = False) -> None:
        """`lives`: the peer has said that its process goes on."""
        peer = session.hello.peer
        if self.sessions.get(peer) is not session:
            return
        del self.sessions[peer]
        self._tickets.void(session.control)
        self._tunnel_service.disconnected(peer)
        if not self._closing:
            session.control.send(Disconnecting(why))  # Lost if the connection has ended.
        for each in (session.control, *session.bulks):
            each.close(why)
        if not self._closing:
            self._owner.disconnected(peer, why, lives=lives)
            self._dialer.again(peer)

    def bulk_came(self, connection: socket.socket, ticket: bytes) -> None:
        taken = self._tickets.take(ticket)
        if taken is None or self._closing:
            connection.close()
            return
        control, keys = taken
        half = self._half_open.take(control)
        if half is not None:
            self._attach(Session(half.hello, control, address=""), connection, keys)
        else:  # Tickets end with their session.
            session = self.sessions[PeerId(control.peer)]
            assert session.control is control
            self._bulk_connections.add(session, connection, keys)

    def _bulk_ended(self, bulk: Bulk, why: str) -> None:
        self._open.ended(bulk)
        session = self.sessions.get(bulk.peer)
        if session is not None and bulk in session.bulks:
            self._end_session(session, why)

    # Dialling's side ------------------------------------------------------------------------

    def is_connected(self, peer: str, address: str) -> bool:
        if peer:
            return peer in self.sessions
        return any(session.hello.address == address for session in self.sessions.values())

    def yields_to(self, peer: PeerId) -> bool:
        return self._half_open.yields_to(peer)

    def tunnel_end_came(self, connection: socket.socket, ticket: bytes) -> None:
        self._tunnel_service.end_came(connection, ticket)

    def dialled(
        self, address: str, hello: Hello, control: Link, bulk: socket.socket, keys: Keys
    ) -> None:
        self._attach(Session(hello, control, address, ticket=keys.ticket), bulk, keys)
