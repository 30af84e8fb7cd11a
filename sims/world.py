"""A whole cluster in one thread and virtual time: cores, links, trainers, faults, from one seed.

Training is replaced by arithmetic modulo a prime that is exact and easy to check: a peer's inner
steps move its one parameter by a number of its own, and the outer step subtracts the weighted
mean. So agreement, atomicity and rebase are checked on values, not only on messages. A tenth of
the messages pass through the real encoding.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import wire
from protocols.config import ProtocolConfig
from protocols.core import PeerCore
from protocols.hellos import Identity
from protocols.ids import Contributor, PeerId, Stamp, Version, digest_text
from sims.checkers import PRIME, Checkers

FRAGMENT_ELEMENTS = 3 << 18
"""Big enough for three parts; nobody allocates it."""
RULES = ProtocolConfig(
    heartbeat_interval_s=0.5,
    silence_timeout_s=5.0,
    reconnect_grace_s=2.5,
    round_grace_s=8.0,
    reduction_timeout_s=6.0,
    transfer_timeout_s=10.0,
)


@dataclass(slots=True)
class Node:
    """One peer's shell and trainer."""

    core: PeerCore
    speed: float
    """Seconds an inner step takes."""
    alive: bool = True
    paused_until: float = 0.0
    outer: int = 0
    """The outer parameter, modulo PRIME."""
    base: int = 0
    staged: int = 0
    """A state that arrived and is not adopted yet."""
    local: int = 0
    tokens: int = 0
    steps: int = 0
    life: int = 0
    """Rises when the trainers restart: what older ones scheduled is void."""
    encoded: dict[str, int] = field(default_factory=dict[str, int])
    slices: dict[tuple[Stamp, int, PeerId], int] = field(
        default_factory=dict[tuple[Stamp, int, PeerId], int]
    )
    results: dict[tuple[Stamp, int], int] = field(default_factory=dict[tuple[Stamp, int], int])
    dialled: dict[PeerId, str] = field(default_factory=dict[PeerId, str])
    outcome: str = ""
    why: str = ""


class World:
    """`run()` to the end; `checkers` hold what was violated."""

    def __init__(self, seed: int, *, peers: int, outer_steps: int, inner_steps: int = 8) -> None:
        self.random = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
        self.now = 0.0
        self.outer_steps, self.inner_steps, self.peers_min = outer_steps, inner_steps, peers
        self.nodes: dict[PeerId, Node] = {}
        self.by_address: dict[str, PeerId] = {}
        self.up: set[frozenset[PeerId]] = set()
        self.connections: dict[frozenset[PeerId], int] = {}
        """How often a pair has connected: what was sent before is lost."""
        self.line_free: dict[tuple[PeerId, PeerId, str], float] = {}
        self.delay_s = self.random.choice([0.0005, 0.01, 0.1])
        self.jitter = self.random.choice([0.0, 1.0, 5.0])
        self.checkers = Checkers()
        self.story: list[str] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for index in range(peers):
            self.add_peer(leader=index == 0)

    # Faults and membership ------------------------------------------------------------------

    def add_peer(self, *, leader: bool = False) -> PeerId:
        number = len(self.nodes)
        peer = PeerId(f"p{number}.{self.random.getrandbits(32):08x}")
        me = Identity(peer=peer, name=f"p{number}", incarnation=1, address=f"host{number}:1")
        speed = self.random.choice([0.05, 0.05, 0.06, 0.1])
        node = Node(PeerCore(me, join=not leader), speed)
        self.nodes[peer] = node
        self.by_address[me.address] = peer
        if leader:
            node.outer = self.random.randrange(PRIME)
            run = e.Run(1, "{}", "", self.peers_min, self.outer_steps, 1, (), (FRAGMENT_ELEMENTS,))
            self.give(peer, v.RunAccepted(RULES))
            self.give(peer, v.Bootstrap(run, None, (self._digest(node.outer),)))
        else:
            first = next(iter(self.nodes.values())).core.me
            self.at(0.0, lambda: self._dial(peer, first.address))
        self.at(self.random.uniform(0.0, 2.0), lambda: self.give(peer, v.TrainersReady()))
        return peer

    def kill(self, peer: PeerId) -> None:
        self._tell(f"kill {peer}")
        self.nodes[peer].alive = False
        for other in self.nodes:
            self.cut(peer, other)

    def cut(self, one: PeerId, other: PeerId) -> None:
        """The connection between two peers ends; whoever dialled dials again."""
        pair = frozenset((one, other))
        if pair not in self.up:
            return
        self.up.discard(pair)
        for me, them in ((one, other), (other, one)):
            self.give(me, v.PeerDisconnected(them, "end of stream"))
            if them in self.nodes[me].dialled:
                self._redial(me, them)

    def pause(self, peer: PeerId, seconds: float) -> None:
        self._tell(f"pause {peer} for {seconds:.2f} s")
        self.nodes[peer].paused_until = self.now + seconds

    def lose_trainers(self, peer: PeerId) -> None:
        node = self.nodes[peer]
        self._tell(f"trainers of {peer} crash")
        node.life += 1
        self.give(peer, v.TrainersLost("crash"))
        self.at(self.random.uniform(0.1, 1.0), lambda: self.give(peer, v.TrainersReady()))

    def heal(self) -> None:
        """As many live peers as the run needs, so that it can go on."""
        live = sum(node.alive and not node.outcome for node in self.nodes.values())
        if not next(iter(self.nodes.values())).outcome:
            for _ in range(self.peers_min - live):
                self.add_peer()

    # Time -----------------------------------------------------------------------------------

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + after_s, next(self._order), action))

    def run(self, *, until_s: float) -> None:
        """Run until every live peer has stopped, or the time is over."""
        while self.now < until_s and any(n.alive and not n.outcome for n in self.nodes.values()):
            due = min(self._deadlines(), default=(float("inf"), None))
            if self._heap and self._heap[0][0] <= due[0]:
                self.now, _, action = heapq.heappop(self._heap)
                action()
            elif due[1] is not None:
                self.now = max(self.now, due[0])
                self.give(due[1], v.DeadlineReached())
                if self.nodes[due[1]].core.deadline <= due[0]:
                    core = self.nodes[due[1]].core
                    self.checkers.violations.append(
                        f"{due[1]} at {self.now}: the deadline {core.deadline} stays in the past: "
                        f"{core.links.deadline} {core.leader and core.leader.deadline()} "
                        f"{[r.deadline for r in core.rounds]} {core.standing.catchup.transfer}"
                    )
                    return
            else:
                return

    def _deadlines(self) -> list[tuple[float, PeerId]]:
        return [
            (max(node.core.deadline, node.paused_until), peer)
            for peer, node in self.nodes.items()
            if node.alive and not node.outcome and node.core.deadline < float("inf")
        ]

    def give(self, peer: PeerId, event: v.Event) -> None:
        """Let a core take an event, and do what it says."""
        node = self.nodes[peer]
        if not node.alive or node.outcome:
            return
        if self.now < node.paused_until:
            self.at(node.paused_until - self.now, lambda: self.give(peer, event))
            return
        for command in node.core.handle(event, self.now):
            self._do(peer, node, command)

    # Commands -------------------------------------------------------------------------------

    def _do(self, peer: PeerId, node: Node, command: c.Command) -> None:
        match command:
            case c.Send(peer=to, message=message):
                if self.random.random() < 0.1:
                    decoded = wire.decode(wire.encode(message), size_max=wire.CONTROL_BYTES_MAX)
                    assert decoded == message
                self._carry(peer, to, "control", v.MessageReceived(peer, message))
            case c.Connect(address=address):
                self._dial(peer, address)
            case c.Disconnect(peer=other):
                node.dialled.pop(other, None)
                self.cut(peer, other)
            case c.CheckRun():
                self.at(0.0, lambda: self.give(peer, v.RunAccepted(RULES)))
            case c.Applied(entry=entry, index=index):
                self.checkers.applied(peer, index, entry)
            case c.Stop(why=why, outcome=outcome):
                self._tell(f"{peer} stops: {outcome} ({why})")
                node.outcome, node.why = outcome, why
                self._leave(peer)
            case c.Note(kind=kind, text=text):
                self._tell(f"{peer} notes {kind}: {text}")
                self.checkers.note(kind, text)
            case c.Resume():
                self._resume(peer, node, command)
            case _:
                self._payload(peer, node, command)

    def _payload(self, peer: PeerId, node: Node, command: c.Command) -> None:
        match command:
            case c.Encode(fragment=fragment, round=round_):
                delta = (node.base - node.local) % PRIME
                manifest = digest_text(f"{peer} {delta} {node.tokens} {self.now}")
                node.encoded[manifest] = delta
                self.checkers.encoded(manifest, delta)
                self.at(0.001, lambda: self.give(peer, v.Encoded(fragment, round_, manifest)))
            case c.SendSlice(peer=to, stamp=stamp, part=part, contributor=me):
                delta = node.encoded[me.manifest]
                event = v.SliceReceived(peer, stamp, part, me)
                self._carry(peer, to, "bulk", event, delta)
            case c.ReducePart(stamp=stamp, part=part, contributors=contributors):
                self._reduce(peer, node, stamp, part, contributors)
            case c.SendResult(peer=to, stamp=stamp, part=part):
                value = node.results[stamp, part]
                event = v.ResultReceived(peer, stamp, part, command.contributors, command.digest)
                self._carry(peer, to, "bulk", event, value)
            case c.ApplyRound(stamp=stamp, borders=borders):
                self._apply(peer, node, stamp, len(borders) - 1)
            case c.AdoptState(round=round_):
                node.outer = node.staged
                self.checkers.state(peer, round_, self._digest(node.outer))
            case c.ServeState(peer=to, cut_index=index, versions=versions):
                for version in versions:
                    self._serve(peer, node.outer, to, index, version)
            case _:
                pass  # Memory is not modelled.

    def _reduce(
        self, peer: PeerId, node: Node, stamp: Stamp, part: int, terms: tuple[Contributor, ...]
    ) -> None:
        values = [
            node.encoded[t.manifest]
            if t.peer == peer
            else next(
                value
                for (s, p, who), value in node.slices.items()
                if (s.round, s.view, p, who) == (stamp.round, stamp.view, part, t.peer)
            )
            for t in terms
        ]
        total = sum(t.tokens * value for t, value in zip(terms, values, strict=True))
        mean = total * pow(sum(t.tokens for t in terms), -1, PRIME) % PRIME
        node.results[stamp, part] = mean
        digest = digest_text(f"{mean}")
        self.at(0.001, lambda: self.give(peer, v.PartReduced(stamp, part, digest)))

    def _apply(self, peer: PeerId, node: Node, stamp: Stamp, parts: int) -> None:
        means = {node.results[stamp, part] for part in range(parts)}
        self.checkers.means(stamp, means)
        mean = node.results[stamp, 0]

        def done() -> None:
            node.outer = (node.outer - mean) % PRIME
            digest = self._digest(node.outer)
            self.checkers.state(peer, stamp.round, digest)
            self.give(peer, v.RoundApplied(stamp.fragment, stamp.round, digest))

        self.at(0.001, done)

    def _serve(self, peer: PeerId, outer: int, to: PeerId, index: int, version: Version) -> None:
        digest = self._digest(outer)
        event = v.StateReceived(peer, index, version.fragment, version.round, digest)
        self.at(
            self.random.uniform(0.05, 1.0),
            lambda: self._carry(peer, to, "bulk", event, outer),
        )

    # Trainer --------------------------------------------------------------------------------

    def _resume(self, peer: PeerId, node: Node, command: c.Resume) -> None:
        if command.kind == "full":
            node.local = node.outer
            node.tokens = node.steps = 0
        else:
            node.local = (node.local + node.outer - node.base) % PRIME
        node.base = node.outer
        if command.finish:
            return
        self._step(peer, node.life, 0, first=command.first)

    def _step(self, peer: PeerId, life: int, done: int, *, first: bool) -> None:
        """One inner step; at the boundary the trainer contributes and blocks."""

        def step() -> None:
            node = self.nodes[peer]
            if node.life != life or not node.alive or node.outcome:
                return
            if self.now < node.paused_until:
                self.at(node.paused_until - self.now, step)
                return
            node.local = (node.local + self.random.randrange(1 << 20)) % PRIME
            node.tokens, node.steps = node.tokens + 16, node.steps + 1
            early = first and 2 * (done + 1) >= self.inner_steps
            if early:
                self.give(peer, v.TrainersAble())
            if done + 1 >= self.inner_steps or (early and node.core.rounds[0].others_wait):
                self.give(peer, v.ContributionReady(0, node.tokens, node.steps))
            else:
                self._step(peer, life, done + 1, first=first)

        self.at(self.nodes[peer].speed * self.random.uniform(0.9, 1.1), step)

    # Network --------------------------------------------------------------------------------

    def _carry(
        self,
        sender: PeerId,
        to: PeerId,
        purpose: str,
        event: v.Event,
        value: int = 0,
    ) -> None:
        """Deliver in order per connection; what is under way when it ends is lost."""
        pair = frozenset((sender, to))
        if pair not in self.up:
            return
        delay = self.delay_s * (1 + self.jitter * self.random.random())
        line = (sender, to, purpose)
        arrival = max(self.line_free.get(line, 0.0), self.now + delay)
        self.line_free[line] = arrival + 1e-6
        connection = self.connections[pair]

        def deliver() -> None:
            if pair not in self.up or self.connections[pair] != connection:
                return
            node = self.nodes[to]
            if self.now < node.paused_until:
                self.at(node.paused_until - self.now, deliver)
                return
            match event:
                case v.SliceReceived():
                    node.slices.setdefault((event.stamp, event.part, sender), value)
                case v.ResultReceived():
                    node.results[event.stamp, event.part] = value
                case v.StateReceived():
                    node.staged = value
                case _:
                    pass
            self.give(to, event)

        self.at(arrival - self.now, deliver)

    def _dial(self, peer: PeerId, address: str) -> None:
        other = self.by_address[address]
        self.nodes[peer].dialled[other] = address
        self._redial(peer, other)

    def _redial(self, peer: PeerId, other: PeerId) -> None:
        """Dial after a moment; again while nobody is there."""

        def connect() -> None:
            one, two = self.nodes[peer], self.nodes[other]
            pair = frozenset((peer, other))
            if other not in one.dialled or one.outcome or not one.alive or pair in self.up:
                return
            if two.outcome or not two.alive:
                if not one.core.log.entries:
                    one.outcome = "alone"  # A joiner that finds nobody gives up.
                return  # Otherwise the log will say that it is gone.
            self.up.add(pair)
            self.connections[pair] = self.connections.get(pair, 0) + 1
            for me, them in ((peer, other), (other, peer)):
                self.give(me, self._hello(them))

        self.at(self.delay_s * 3 + 0.01, connect)

    def _hello(self, peer: PeerId) -> v.PeerConnected:
        core = self.nodes[peer].core
        leader = core.leader_address()
        return v.PeerConnected(peer, core.me.incarnation, core.me.address, leader)

    def _leave(self, peer: PeerId) -> None:
        """The process ends: every connection with it does."""
        for other in self.nodes:
            self.at(self.delay_s, lambda other=other: self.cut(peer, other))

    def _digest(self, outer: int) -> str:
        return digest_text(str(outer))

    def _tell(self, text: str) -> None:
        self.story.append(f"{self.now:9.3f} {text}")
