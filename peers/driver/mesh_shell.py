"""The shell of the connections: what the core commands of the mesh, and what the mesh reports.

Chunks go to and from the data plane of their kind: rounds, steps, state transfers. Must NOT decide
which peer is accepted (protocols/links), nor whether a payload counts.
"""

from collections.abc import Callable

from peers.checks.block_checks import BlockChecks
from peers.connections.frames import Frame
from peers.connections.mesh import Mesh
from peers.exchange.data_plane import DataPlane
from peers.exchange.interfaces import Listener
from peers.metrics.counters import Counters
from peers.steps.payload_store import PayloadStore
from peers.transfer.state_transfer import StateTransfers
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import refusal
from protocols.messages import peer as m
from protocols.peer import PeerCore
from protocols.types import PROTOCOL_VERSION, PeerId

MeshCommand = c.Send | c.Connect | c.Disconnect


class MeshShell:
    """The shell of one mesh. Implements MeshOwner."""

    def __init__(
        self,
        core: PeerCore,
        *,
        listener: Listener,
        data_plane: DataPlane,
        snapshots: StateTransfers,
        feed: Callable[[v.Event], None],
    ) -> None:
        self.mesh: Mesh | None = None
        """Made after this object, before the first event."""
        self.step_payloads: PayloadStore | None = None
        """The payloads of a stepwise run, once its sizes are known."""
        self.block_checks = BlockChecks(core, data_plane, send=self.send, feed=feed)
        self.counters = Counters()
        self._core = core
        self._listener = listener
        self._data_plane = data_plane
        self._inbound = data_plane.inbound
        self._snapshots = snapshots
        self._transfer = snapshots.transfer
        self._feed = feed
        self._closed_because = ""
        """Why no peer is accepted; "" if the log decides."""

    # The core's side ------------------------------------------------------------------------

    def do(self, command: MeshCommand) -> None:
        mesh = self.mesh
        assert mesh is not None
        match command:
            case c.Send(peer=peer, message=message):
                self.send(peer, message)
            case c.Connect(peer=peer, address=address, via=via):
                mesh.connect(address, peer=peer, via=via)
            case c.Disconnect(peer=peer, why=why):
                mesh.disconnect(peer, why)

    def send(self, peer: PeerId, message: m.Control) -> None:
        assert self.mesh is not None
        self.sent(peer, self.mesh.send(peer, message))

    def sent(self, peer: PeerId, fits: bool) -> None:
        """A peer with a full outbox gets a new connection, and everything that it needs again."""
        if not fits and self.mesh is not None:
            self.mesh.drop_session(peer, "too slow: its outbox is full")

    def refuse_all(self, why: str) -> None:
        """Accept no peer any more: connected ones get the reason now, others when they connect."""
        assert self.mesh is not None
        self._closed_because = why
        for peer in list(self.mesh.sessions):
            self.mesh.send(peer, m.Refused(why))

    def heard(self, pulse: v.MessageReceived, now: float) -> None:
        """Count the lateness of a heartbeat that comes now."""
        links = self._core.links
        failure_detector = links.failure_detector
        last = self.counters.last_heartbeat(pulse.peer, now)
        late_s = failure_detector.late_s(pulse.peer, last, now)
        if late_s is not None:
            self.counters.heartbeat(now, late_s=late_s)

    # The mesh's side ------------------------------------------------------------------------

    def hello(self) -> m.Hello:
        core = self._core
        me, run, leader = core.me, core.raft.run, core.connectivity.leader_address()
        return m.Hello(PROTOCOL_VERSION, run, me.peer, me.name, me.incarnation, me.address, leader)

    def refusal(self, hello: m.Hello) -> str:
        core = self._core
        if self._closed_because:
            return self._closed_because
        life = core.links.life(hello.peer, 0)
        return refusal(hello, me=core.me, run=core.raft.run, run_state=core.run_state, life=life)

    def peer_connected(self, hello: m.Hello) -> None:
        assert self.mesh is not None
        session = self.mesh.sessions[hello.peer]
        self.counters.follow(hello.peer, session.control, session)
        self._data_plane.meet(hello.peer, hello.incarnation, far=session.far)
        self._snapshots.peer_connected()
        self._feed(v.PeerConnected(hello.peer, hello.incarnation, hello.address, hello.leader))

    def bytes_received(self, peer: PeerId) -> None:
        self._feed(v.BytesReceived(peer))

    def disconnected(self, peer: PeerId, why: str, *, lives: bool) -> None:
        self.counters.unfollow(peer)
        self._data_plane.forget(peer)
        self._transfer.forget(peer)
        if self.step_payloads is not None:
            self.step_payloads.forget(peer)
        self._feed(v.PeerDisconnected(peer, why, lives))

    def received(self, peer: PeerId, message: m.Control) -> None:
        if isinstance(message, m.Blocks):
            self.block_checks.blocks_received(peer, message)  # The core knows nothing of bytes.
            self.bytes_received(peer)
        else:
            self._feed(v.MessageReceived(peer, message))

    def is_revoked(self, peer: PeerId) -> bool:
        run_state = self._core.run_state
        return peer in run_state.revoked

    def barred(self, peer: PeerId, why: str) -> None:
        self._feed(v.Barred(peer, why))

    def is_member(self, peer: PeerId) -> bool:
        run_state = self._core.run_state
        return peer in run_state.readers

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None:
        self.counters.relayed(source, sink, size)

    def admission_asked(self, number: int, admit: m.Admit) -> None:
        if self._closed_because and self.mesh is not None:
            self.mesh.answer(number, m.NotAdmitted(self._closed_because, True))
        else:
            self._feed(v.AdmitAsked(number, admit))

    def refused(self, why: str) -> None:
        self._feed(v.ContactRefused(why))

    def next_chunk(self, peer: PeerId) -> Frame | None:
        outbounds = self._data_plane.outbounds
        frame = outbounds.next_chunk(peer)
        if frame is not None and not isinstance(frame[0], m.StateChunk):
            self._moved(memoryview(frame[1]).nbytes)
        return frame

    def _moved(self, size: int) -> None:
        """Bytes of rounds or steps were moved: state transfers give way to them."""
        pace = self._snapshots.pace
        pace.moved(size)

    def padding_bytes(self, peer: PeerId) -> int:
        return self._data_plane.padding_bytes(peer)

    def payload_sent(self, peer: PeerId, chunk: m.Chunk, size: int) -> None:
        self.counters.count_sent(peer, chunk, size)

    def place(self, peer: PeerId, chunk: m.Chunk, size: int) -> memoryview | None:
        if isinstance(chunk, m.StateChunk):
            return self._transfer.place(peer, chunk, size)
        if isinstance(chunk, m.Padding):
            return None
        place: memoryview | None = None
        if not isinstance(chunk, m.StepChunk):
            place = self._inbound.place(peer, chunk, size)
        elif self.step_payloads is not None:
            place = self.step_payloads.place(peer, chunk, size)
        if place is not None:
            self._moved(size)  # Unwanted payload does not slow state transfers down.
        return place

    def payload_received(self, peer: PeerId, chunk: m.Chunk, size: int, *, kept: bool) -> None:
        self.counters.count_received(peer, chunk, size, kept=kept or isinstance(chunk, m.Padding))

    def chunk_received(self, peer: PeerId, chunk: m.Chunk) -> None:
        if isinstance(chunk, m.StateChunk):
            self._transfer.arrived(peer, chunk)
        elif isinstance(chunk, m.PieceChunk):
            self._inbound.arrived(peer, chunk)
        elif isinstance(chunk, m.StepChunk) and self.step_payloads is not None:
            self.step_payloads.arrived(peer, chunk)
