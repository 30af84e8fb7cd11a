"""A few Raft objects, their disks, and what is under way between them: for the tests of
protocols/raft.

Nothing moves by itself: a test delivers messages and lets disks answer, in any order it likes, or
lets everything settle. Must NOT judge anything.
"""

from collections.abc import Callable

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.persisted import Snapshot
from protocols.raft.log import EMPTY_HASH, Log, Voters
from protocols.raft.mandate import LeaderProofs, NoProofs, Statement
from protocols.raft.node import Raft
from protocols.raft.snapshot_chunks import IncomingSnapshot
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig
from tests.protocols.carried import carried
from tests.protocols.disk import Disk
from tests.protocols.scenes import A, info, run, sealed

RULES = ProtocolConfig()
STEP_S = RULES.heartbeat_interval_s


def note(text: str) -> e.Entry:
    """An entry that means nothing to Raft."""
    return e.Lost(PeerId("nobody"), text)


def votes(peer: PeerId, *, yes: bool = True) -> e.Voter:
    return e.Voter(peer, yes, "")


def image_of(voters: Voters) -> bytes:
    return " ".join(voters).encode()


def voters_of(image: bytes) -> Voters:
    return tuple(PeerId(peer) for peer in image.decode().split())


class Sealed:
    """The proofs of an encrypted run. Each peer may lead; what it signs can be checked."""

    required = True

    def __init__(self, me: PeerId) -> None:
        self._me = me

    def read(self, log: Log) -> None:
        pass

    def sign(self, what: Statement) -> bytes:
        return sealed(self._me, what.content(1))

    def is_signed(self, peer: PeerId, what: Statement, signature: bytes) -> bool:
        return signature == sealed(peer, what.content(1))

    def mandate(self) -> e.Mandate:
        return e.Mandate()

    def proves(self, mandate: e.Mandate, leader: PeerId, term: int) -> bool:
        return True


class Circle:
    """All of them are connected; A founds the run when it is told to."""

    def __init__(
        self, *peers: PeerId, prove: Callable[[PeerId], LeaderProofs] = lambda _: NoProofs()
    ) -> None:
        """`prove`: makes the proofs of a peer."""
        self.now = 0.0
        self.disks = {peer: Disk() for peer in peers}
        self.wire: list[tuple[PeerId, PeerId, m.Control]] = []
        """(from, to, message), in the order in which they were sent."""
        self.writes: dict[PeerId, list[c.Persist]] = {peer: [] for peer in peers}
        """What each disk was given and did not answer yet."""
        self.stuck: set[PeerId] = set()
        """Whose disks answer nothing while the others settle."""
        self.away: set[frozenset[PeerId]] = set()
        """Who is not connected."""
        self.deaf: set[PeerId] = set()
        """To whom nothing arrives."""
        self.incoming = {peer: IncomingSnapshot() for peer in peers}
        """The snapshot that a peer is receiving."""
        self.rafts: dict[PeerId, Raft] = {}
        self.prove = prove
        self.said: Callable[[PeerId, m.Control], None] = lambda peer, message: None
        """Called with each message as it leaves a peer."""
        for peer in peers:
            self.rafts[peer] = Raft(peer, proofs=prove(peer))
        for peer in peers:
            self._connect(peer)

    # What happens ---------------------------------------------------------------------------

    def begin(self) -> None:
        self.rafts[A].found_run(self.now, [run(), e.Member(info(A))])
        self.collect(A)
        self.settle()

    def append(self, peer: PeerId, *bodies: e.Entry) -> None:
        """The leader's right; nothing is delivered."""
        for body in bodies:
            self.rafts[peer].append(body)
        self.collect(peer)

    def collect(self, peer: PeerId) -> None:
        """What a peer wants sent and written is under way from here on."""
        raft = self.rafts[peer]
        if raft.leads:
            raft.serve(self.disks)
        for command in raft.take_commands(self.now):
            if isinstance(command, c.Persist):
                self.writes[peer].append(command)
            elif isinstance(command, c.Send) and command.peer == peer:
                raft.receive(peer, command.message, self.now)  # As peer/core.py does.
                self.collect(peer)
            elif isinstance(command, c.Send):
                self._send(peer, command)

    def write(self, peer: PeerId) -> None:
        """The disk takes the oldest thing that it was given."""
        persist = self.writes[peer].pop(0)
        self.disks[peer].write(persist)
        self.rafts[peer].persisted(persist.write_number, self.now)
        self.collect(peer)

    def fail(self, peer: PeerId) -> None:
        """The disk is full: it takes nothing of what it was given."""
        writes = [persist.write_number for persist in self.writes[peer]]
        self.writes[peer].clear()
        for write_number in writes:
            self.rafts[peer].persist_failed(write_number, "no space left", self.now)
        self.collect(peer)

    def deliver(self, place: int = 0, *, again: bool = False) -> None:
        """One message arrives; `again`: and it will once more."""
        sender, to, message = self.wire[place] if again else self.wire.pop(place)
        raft = self.rafts.get(to)
        if raft is None:
            return
        if isinstance(message, m.Install):  # As state/log_applier.py does.
            snapshot = (
                self.incoming[to].add_piece(sender, message) if message.term >= raft.term else None
            )
            if snapshot is not None:
                base = (voters_of(snapshot.image), EMPTY_HASH)
                raft.installed(sender, snapshot, base, message.term, self.now)
        else:
            raft.receive(sender, message, self.now)
        self.collect(to)

    def settle(self) -> None:
        """Everything arrives, and every disk that is not stuck answers."""
        while self.step():
            pass

    def step(self) -> bool:
        """One disk answers, or one message arrives; False if there is neither."""
        for peer in self.writes:
            if peer not in self.stuck and self.writes[peer]:
                self.write(peer)
                return True
        if self.wire:
            self.deliver()
            return True
        return False

    def look(self, peer: PeerId) -> None:
        """The peer looks at the clock."""
        self.rafts[peer].advance(self.now)
        self.collect(peer)

    def beat(self, peer: PeerId) -> None:
        for other in sorted(self.rafts[peer].up):
            for command in self.rafts[peer].beat(other):
                assert isinstance(command, c.Send)
                self._send(peer, command)

    def pass_time(self, seconds: float) -> None:
        """A heartbeat at each step, and everything settles in between."""
        end = self.now + seconds
        while self.now < end:
            self.now += STEP_S
            for peer in list(self.rafts):
                self.look(peer)
                self.beat(peer)
            self.settle()

    def compact(self, peer: PeerId, index: int, voters: Voters) -> None:
        """As state/log_applier.py does, but none of the log stays."""
        raft = self.rafts[peer]
        term = raft.log.term_at(index)
        assert term is not None
        snapshot = Snapshot(index, term, image_of(voters))
        raft.log.compact(index)
        raft.replication.snapshot = snapshot
        raft.disk.snapshot_taken(snapshot)
        self.collect(peer)

    # Connections and lives ------------------------------------------------------------------

    def part(self, *pairs: tuple[PeerId, PeerId]) -> None:
        """These are not connected any more; what was under way between them is lost."""
        for one, two in pairs:
            pair = frozenset((one, two))
            self.away.add(pair)
            self.wire = [x for x in self.wire if frozenset(x[:2]) != pair]
            for peer, other in ((one, two), (two, one)):
                if peer in self.rafts:
                    self.rafts[peer].disconnected(other, self.now)
                    self.collect(peer)

    def alone(self, peer: PeerId) -> None:
        """Nobody is connected with it."""
        self.part(*((peer, other) for other in self.disks if other != peer))

    def meet(self, *pairs: tuple[PeerId, PeerId]) -> None:
        for one, two in pairs:
            self.away.discard(frozenset((one, two)))
            for peer, other in ((one, two), (two, one)):
                if peer in self.rafts and other in self.rafts:
                    self.rafts[peer].connected(other, self.now)
                    self.collect(peer)

    def back(self, peer: PeerId) -> None:
        """It is connected with everybody again."""
        self.meet(*((peer, other) for other in self.disks if other != peer))

    def crash(self, peer: PeerId) -> None:
        """The machine stops: what its disk did not answer is lost."""
        self.alone(peer)
        del self.rafts[peer]
        self.writes[peer].clear()

    def restart(self, peer: PeerId) -> None:
        saved = self.disks[peer].saved
        snapshot = saved.snapshot if saved else None
        base = (voters_of(snapshot.image) if snapshot else (), EMPTY_HASH)
        raft = Raft(peer, saved, base, self.prove(peer))
        self.rafts[peer], self.incoming[peer] = raft, IncomingSnapshot()
        raft.election.wait(self.now)
        self.back(peer)

    def _send(self, peer: PeerId, send: c.Send) -> None:
        self.said(peer, send.message)
        if frozenset((peer, send.peer)) not in self.away and send.peer not in self.deaf:
            self.wire.append((peer, send.peer, carried(send.message)))

    def _connect(self, peer: PeerId) -> None:
        for other in self.disks.keys() - {peer}:
            self.rafts[peer].connected(other, self.now)

    # Questions ------------------------------------------------------------------------------

    def leaders(self) -> list[PeerId]:
        return [peer for peer, raft in self.rafts.items() if raft.leads]

    def leader(self) -> PeerId:
        """The only one."""
        (leader,) = self.leaders()
        return leader

    def sent(self, kind: type[m.Control]) -> list[tuple[PeerId, PeerId]]:
        """Who has a message of this kind under way, and to whom."""
        return [(x, y) for x, y, message in self.wire if isinstance(message, kind)]

    def committed(self, peer: PeerId) -> list[e.Entry]:
        """The bodies that hold, as far as the peer knows."""
        raft = self.rafts[peer]
        return [x.body for x in raft.log.entries if x.index <= raft.commit_index]


def voting(
    *peers: PeerId, prove: Callable[[PeerId], LeaderProofs] = lambda _: NoProofs()
) -> Circle:
    """All of them vote; A leads in term 1 and everything is committed."""
    circle = Circle(*peers, prove=prove)
    circle.begin()
    for peer in peers[1:]:
        circle.append(A, votes(peer))
        circle.settle()
    circle.pass_time(2 * STEP_S)
    return circle


def stands(circle: Circle, peer: PeerId) -> None:
    """The peer's patience ends before that of the others; it wins if they let it."""
    circle.now = max(circle.now, circle.rafts[peer].deadline)
    circle.look(peer)
