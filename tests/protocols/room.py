"""Several cores in one room: messages arrive at once and in order, disks and arithmetic are quick.

For scenarios on whole rounds. A test may hold back what goes to a peer (`hold`, a disk's answers
included), or look at every command that a core gave (`given`). Elections happen while time passes
(`wait`). Must NOT judge anything.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.core import PeerCore
from protocols.types.ids import Contributor, PeerId, digest_text
from protocols.types.rules import ProtocolConfig
from protocols.types.sample_ranges import Samples
from tests.protocols.carried import carried
from tests.protocols.disk import Disk

Entry = TypeVar("Entry", bound=e.Entry)
Command = TypeVar("Command", bound=c.Command)

RULES = ProtocolConfig(round_grace_s=30.0, reduction_timeout_s=60.0, check_owners=False)
PART = 1 << 18
"""Elements of the smallest part."""


class Room:
    """The first one founds the run and leads; the others join. `now` is set by the test."""

    def __init__(
        self,
        names: str,
        *,
        outer_steps: int = 10,
        parts: int = 3,
        samples_ahead: int = 0,
        fragments: int = 1,
        rules: ProtocolConfig = RULES,
    ) -> None:
        self.now = 0.0
        self.accepted = v.RunAccepted(rules, samples_ahead)
        self.ids = {name: PeerId(f"{name}.00000001") for name in names}
        self.peers: dict[str, PeerCore] = {}
        self.disks: dict[str, Disk] = {}
        self.links: set[frozenset[str]] = set()
        """Who is connected with whom."""
        self.down: set[frozenset[str]] = set()
        """Who cannot be."""
        self.given: dict[str, list[c.Command]] = {}
        for name in names:
            self._new(name, join=name != names[0])
        self.hold: Callable[[str, v.Event], bool] = lambda name, event: False
        self.held: list[tuple[str, v.Event]] = []
        self._queue: deque[tuple[str, v.Event]] = deque()
        first = names[0]
        founder, elements = self.ids[first], (parts * PART,) * fragments
        run = e.Run(1, "{}", "", len(names), outer_steps, 1, b"", elements, founder)
        self.feed(first, self.accepted)
        self.feed(first, v.Bootstrap(run, (digest_text("0"),) * fragments))
        for name in names[1:]:
            self.meet(first, name)
        for name in names:
            self.feed(name, v.TrainersReady())

    def add(self, name: str, *, witness: bool = False) -> PeerId:
        """A new peer dials the first one, and its ranks (if it has some) attach."""
        self.ids[name] = PeerId(f"{name}.00000001")
        self._new(name, join=True, witness=witness)
        self.meet(next(iter(self.peers)), name)
        if not witness:
            self.feed(name, v.TrainersReady())
        return self.ids[name]

    def kill(self, name: str) -> None:
        """Its process ends: everybody who was connected with it notices at once."""
        del self.peers[name]
        for other in list(self.peers):
            if frozenset((name, other)) in self.links:
                self.feed(other, v.PeerDisconnected(self.ids[name], "end of stream"))

    def restart(
        self,
        name: str,
        *,
        incarnation: int,
        kept: m.Kept | None = None,
        witness: bool = False,
    ) -> None:
        """A new life begins with what is on the disk, and its ranks attach."""
        self._new(name, join=True, incarnation=incarnation, kept=kept, witness=witness)
        if not witness:
            self.feed(name, v.TrainersReady())

    def leader(self) -> str:
        """The only one that leads."""
        (name,) = [name for name, core in self.peers.items() if core.leads]
        return name

    def _new(
        self,
        name: str,
        *,
        join: bool,
        incarnation: int = 1,
        kept: m.Kept | None = None,
        witness: bool = False,
    ) -> None:
        me = Identity(
            peer=self.ids[name],
            name=name,
            incarnation=incarnation,
            address=f"{name}:1",
            witness=witness,
        )
        disk = self.disks.setdefault(name, Disk())
        self.peers[name] = PeerCore(me, join=join, saved=disk.saved, kept=kept)
        self.given[name] = []

    def feed(self, name: str, event: v.Event) -> None:
        """Give an event, and deliver everything that follows from it."""
        self._queue.append((name, event))
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            to, what = self._queue.popleft()
            if to not in self.peers:
                continue  # It is dead.
            if self.hold(to, what):
                self.held.append((to, what))
                continue
            if isinstance(what, v.PeerDisconnected):
                self.links.discard(frozenset((to, self.name_of(what.peer))))
            for command in self.peers[to].handle(what, self.now):
                self.given[to].append(command)
                self._do(to, command)

    def release(self) -> None:
        """Deliver what was held back."""
        held, self.held = self.held, []
        self.hold = lambda name, event: False
        for name, event in held:
            self.feed(name, event)

    def meet(self, one: str, two: str) -> None:
        self._meet_later(one, two)
        self._drain()

    def part(self, one: str, two: str) -> None:
        self.feed(one, v.PeerDisconnected(self.ids[two], "end of stream"))
        self.feed(two, v.PeerDisconnected(self.ids[one], "end of stream"))

    def cut(self, one: str, two: str) -> None:
        """The network between them is down until they `meet`."""
        self.down.add(frozenset((one, two)))
        self.part(one, two)

    def wait(self, seconds: float) -> None:
        """Time passes; everybody looks at the clock, and nobody falls silent."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            for name in self.peers:
                self.feed(name, v.DeadlineReached())

    def contribute(
        self,
        name: str,
        *,
        tokens: int = 100,
        samples: Samples = (),
        fragment: int = 0,
        line: int = 0,
    ) -> None:
        self.feed(name, v.ContributionReady(fragment, tokens, 10, samples, line=line))

    def all_contribute(self) -> None:
        for name in self.peers:
            self.contribute(name)

    def log(self, kind: type[Entry], *, of: str | None = None) -> list[Entry]:
        """The entries of one kind, as a peer has them (the first one's, if none is named)."""
        return [body for body in self.bodies(of) if isinstance(body, kind)]

    def bodies(self, of: str | None = None) -> list[e.Entry]:
        """The whole log of a peer."""
        core = self.peers[of or next(iter(self.peers))]
        return [entry.body for entry in core.raft.log.entries]

    def rosters(self) -> list[list[str]]:
        """Names of who was counted, by round."""
        rosters = [commit.contributors for commit in self.log(e.Commit)]
        return [[self.name_of(term.peer) for term in roster] for roster in rosters]

    def digests(self, *names: str) -> set[str]:
        """The states that they (or all) are at."""
        return {self.peers[name].rounds[0].state_digest for name in names or self.peers}

    def last(self, name: str, kind: type[Command]) -> Command:
        return [x for x in self.given[name] if isinstance(x, kind)][-1]

    def name_of(self, peer: PeerId) -> str:
        return next(name for name, other in self.ids.items() if other == peer)

    def _do(self, name: str, command: c.Command) -> None:
        me, tell = self.ids[name], self._tell
        answer: v.Event | None = None
        match command:
            case c.Send(peer=to, message=message):
                tell(to, v.MessageReceived(me, carried(message)))
            case c.Connect(address=address):
                self._dial(name, address.partition(":")[0])
            case c.Disconnect(peer=to):
                self.links.discard(frozenset((name, self.name_of(to))))
                tell(to, v.PeerDisconnected(me, "end of stream"))
            case c.SendSlice(peer=to, stamp=stamp, part=part, contributor=who):
                tell(to, v.SliceReceived(me, stamp, part, who))
            case c.SendResult(peer=to, stamp=stamp, part=part, contributors=terms):
                tell(to, v.ResultReceived(me, stamp, part, terms, sum_digest(part, terms)))
            case c.CopyState(cut_index=index, fragment=fragment):
                answer = v.StateCopied(index, fragment, 1)
            case c.HashState(cut_index=index, fragment=fragment):
                digest = self.peers[name].rounds[fragment].state_digest
                answer = v.StateHashed(index, fragment, digest, sha256(digest.encode()).digest())
            case c.ServeCells(peer=to, cut_index=index, cells=spans):
                versions = self.peers[name].run_state.cuts[to][1].versions
                for span in spans:
                    digest = versions[span.fragment].state_digest
                    leaf = sha256(digest.encode()).digest()
                    tell(to, v.CellReceived(me, index, span.fragment, 0, leaf))
            case c.CheckState(cut_index=index, fragment=fragment):
                version = self.peers[name].run_state.cuts[me][1].versions[fragment]
                answer = v.StateReceived(index, fragment, version.round, version.state_digest)
            case c.AdoptKept(fragment=fragment, round=round_):
                kept = self.peers[name].member_status.kept
                assert kept is not None
                answer = v.KeptAdopted(fragment, round_, kept.versions[fragment].state_digest)
            case c.Persist(write_number=write_number):
                self.disks[name].write(command)
                answer = v.Persisted(write_number)
            case c.CheckRun():
                answer = self.accepted
            case c.Encode(fragment=fragment, round=round_):
                text = f"{name} {fragment} {round_} {self.now}"
                answer = v.Encoded(fragment, round_, digest_text(text))
            case c.ReducePart(stamp=stamp, part=part, contributors=terms):
                answer = v.PartReduced(stamp, part, sum_digest(part, terms))
            case c.ApplyRound(stamp=stamp):
                core = self.peers[name]
                commit = core.run_state.commit(stamp.fragment, stamp.round)
                assert commit is not None
                before = core.rounds[stamp.fragment].state_digest
                digest = digest_text(before + commit.result_digest)
                answer = v.RoundApplied(stamp, digest)
            case _:
                pass
        if answer is not None:
            self._queue.append((name, answer))

    def _tell(self, peer: PeerId, event: v.Event) -> None:
        self._queue.append((self.name_of(peer), event))

    def _dial(self, name: str, other: str) -> None:
        """One that both dial is one connection; a dead one does not answer."""
        pair = frozenset((name, other))
        if other in self.peers and other != name and pair not in self.links | self.down:
            self._meet_later(name, other)

    def _meet_later(self, one: str, two: str) -> None:
        self.links.add(frozenset((one, two)))
        self.down.discard(frozenset((one, two)))
        for name, other in ((one, two), (two, one)):
            core = self.peers[other]
            me, leader = core.me, core.connectivity.leader_address()
            self._queue.append((name, v.PeerConnected(me.peer, me.incarnation, me.address, leader)))


def sum_digest(part: int, terms: tuple[Contributor, ...]) -> str:
    text = " ".join(f"{x.peer} {x.tokens} {x.manifest}" for x in terms)
    return digest_text(f"{part} {text}")


def is_message(event: v.Event, kind: type[m.Message]) -> bool:
    return isinstance(event, v.MessageReceived) and isinstance(event.message, kind)
