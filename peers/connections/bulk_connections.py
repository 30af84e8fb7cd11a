"""The bulk connections of a mesh: made, tuned, and more of them where they carry more.

The side that dialled a session opens its further bulk connections too; the other side gives the
keys. Must NOT end a session, nor know what a chunk is for.
"""

import socket
from collections.abc import Callable, Mapping
from functools import partial

from peers.connections.bulk import Bulk, Seals
from peers.connections.bulk_tuning import BulkTuning
from peers.connections.control import Link
from peers.connections.dialer import BulkDialled
from peers.connections.encryption import Keys, Seal, Tickets
from peers.connections.session import MeshOwner, Session, Watched
from peers.sockets.tcp_info import CONNECTIONS_MAX
from protocols.messages import BulkKeys, Chunk, WantBulk
from protocols.types import PeerId


class BulkConnections:
    """The bulk connections of all sessions of one mesh."""

    def __init__(
        self,
        sessions: Mapping[PeerId, Session],
        owner: MeshOwner,
        tickets: Tickets,
        *,
        dial: Callable[[Link, Keys, BulkDialled], None],
        ended: Callable[[Bulk, str], None],
        on_chunk_sent: Callable[[PeerId, Chunk, Bulk], None] | None,
        congestion: str,
    ) -> None:
        """`sessions`: the mesh's own table. `dial` opens another connection; `ended(bulk, why)`:
        called when one has ended. `on_chunk_sent`: for fault injection."""
        self.open: set[Bulk] = set()
        self.tickets = tickets
        self.encrypted = False
        """With the keys of their tickets."""
        self._sessions = sessions
        self._owner = owner
        self._dial = dial
        self._ended = ended
        self._on_chunk_sent, self._congestion = on_chunk_sent, congestion
        self._bulk_tuning = BulkTuning(sessions, owner.padding_bytes, self._ask)

    def tune(self) -> None:
        """Begin to tune, once there is a connection. Idempotent."""
        self._bulk_tuning.start()

    def stop_tuning(self) -> None:
        self._bulk_tuning.close()

    def add(self, session: Session, connection: socket.socket, keys: Keys) -> None:
        """The connection is open, with keys of this session."""
        peer = session.hello.peer
        seals = None
        if self.encrypted:
            ours, theirs = keys.accepting, keys.dialling
            if session.address:
                ours, theirs = theirs, ours
            seals = Seals(Seal(ours), Seal(theirs))
        bulk = Bulk(
            self._owner,
            peer,
            connection,
            closed=self._closed,
            seals=seals,
            congestion=self._congestion,
        )
        if self._on_chunk_sent is not None:
            bulk.outgoing.on_chunk_sent = lambda chunk: self._chunk_sent(peer, chunk, bulk)
            if any(other.outgoing.held for other in self.open):
                bulk.outgoing.held = True
        self.open.add(bulk)
        session.bulks[bulk] = Watched()
        bulk.start()
        bulk.feed_from(partial(self._owner.next_chunk, peer))

    def widen(self, session: Session, message: BulkKeys | WantBulk) -> None:
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
                self._dial(session.control, keys, self._dialled)
        else:
            self._ask(session)

    def _dialled(self, control: Link, bulk: socket.socket | None, keys: Keys) -> None:
        session = self._sessions.get(PeerId(control.peer))
        if session is not None and session.control is control:
            session.dialling = False
            if bulk is not None:
                session.ticket = keys.ticket
                self.add(session, bulk, keys)
        elif bulk is not None:
            bulk.close()

    def _ask(self, session: Session) -> None:
        """Ask for another bulk connection, or give the keys for it to the side that dials."""
        if session.address:
            session.control.send(WantBulk())
        else:
            session.control.send(BulkKeys(self.tickets.give(session.control)))

    def _chunk_sent(self, peer: PeerId, chunk: Chunk, bulk: Bulk) -> None:
        assert self._on_chunk_sent is not None
        self._on_chunk_sent(peer, chunk, bulk)
        if bulk.outgoing.held:
            for other in self.open:
                other.outgoing.held = True

    def _closed(self, bulk: Bulk, why: str) -> None:
        self.open.discard(bulk)
        self._ended(bulk, why)
