"""A whole cluster in one thread and virtual time: nodes, lines and faults, all from one seed.

A tenth of the messages pass through the real encoding. Must NOT judge what happens: checkers do.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable

from protocols import entries as e
from protocols import events as v
from protocols.config import ProtocolConfig
from protocols.hellos import Identity, refusal
from protocols.ids import PROTOCOL_VERSION, PeerId
from protocols.messages import Hello
from sims.checkers import PRIME, Checkers
from sims.network import Network
from sims.nodes import Node, state_digest

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
REDIAL_S = 0.5
FIRST_DIAL_S = 5.0
"""A peer that finds nobody at all gives up."""


class World:
    """`run()` to the end; `checkers` hold what was violated."""

    def __init__(self, seed: int, *, peers: int, outer_steps: int, inner_steps: int = 8) -> None:
        self.random = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
        self.now = 0.0
        self.rules = RULES
        self.outer_steps, self.inner_steps, self.peers_min = outer_steps, inner_steps, peers
        self.nodes: dict[PeerId, Node] = {}
        """The newest life of each peer; the first one leads."""
        self.network = Network(self.random, self.at)
        self.compute_s = self.random.choice([0.0005, 0.01, 0.2])
        """What a job of the shell takes."""
        self.checkers = Checkers()
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []
        self.traps: dict[str, int] = {}
        """Faults that wait for the next state transfer: how many of each kind."""
        self.spring: Callable[[str, Node, Node], None] | None = None
        """Called with (kind, joiner, donor) when a trap goes off."""
        self._by_address: dict[str, PeerId] = {}
        self._steps: Counter[PeerId] = Counter()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for _ in range(peers):
            self.add_peer()

    # Membership and faults ------------------------------------------------------------------

    @property
    def leader(self) -> Node:
        return next(iter(self.nodes.values()))

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running]

    def add_peer(self) -> Node:
        """A new peer; the first one leads."""
        number = len(self.nodes)
        peer = PeerId(f"p{number}.{self.random.getrandbits(32):08x}")
        return self._start(
            Identity(peer=peer, name=f"p{number}", incarnation=1, address=f"h{number}:1")
        )

    def restart(self, node: Node) -> None:
        """The daemon dies and comes back: the same peer, knowing nothing."""
        old = node.core.me
        self.kill(node)
        new = Identity(
            peer=old.peer, name=old.name, incarnation=old.incarnation + 1, address=old.address
        )
        self.at(self.random.choice([0.05, 1.0, 4.0]), lambda: self._start(new) and None)

    def kill(self, node: Node) -> None:
        self.tell(f"kill {node.peer}")
        node.alive = False
        self.gone(node)

    def pause(self, node: Node, seconds: float) -> None:
        self.tell(f"pause {node.peer} for {seconds:.2f} s")
        node.paused_until = self.now + seconds

    def cut(self, one: Node, other: Node) -> None:
        """The connection between two peers ends; whoever dialled dials again."""
        if not self.network.disconnect(one.peer, other.peer):
            return
        for me, them in ((one, other), (other, one)):
            me.give(v.PeerDisconnected(them.peer, "end of stream"))
            if them.core.me.address in me.dials:
                self.dial(me, them.core.me.address)

    def heal(self) -> None:
        """No more faults; as many live peers as the run needs, so that it can go on."""
        self.traps.clear()
        self.spring = None
        if self.leader.running:
            staying = [node for node in self.live if not node.asked_to_leave]
            for _ in range(self.peers_min - len(staying)):
                self.add_peer()

    def _start(self, me: Identity) -> Node:
        leads = not self.nodes
        node = Node(self, me, join=not leads, speed=self.random.choice([0.05, 0.05, 0.06, 0.1]))
        self.nodes[me.peer] = node
        self._by_address[me.address] = me.peer
        if leads:
            node.outer = self.random.randrange(PRIME)
            digest = state_digest(node.outer)
            self.checkers.state(me.peer, 0, digest)
            run = e.Run(1, "{}", "", self.peers_min, self.outer_steps, 1, (), (FRAGMENT_ELEMENTS,))
            node.give(v.RunAccepted(RULES))
            node.give(v.Bootstrap(run, None, (digest,)))
        else:
            self.dial(node, self._way_in(node))
        node.after(self.random.uniform(0.0, 2.0), lambda: node.give(v.TrainersReady()))
        return node

    def _way_in(self, node: Node) -> str:
        """Where a peer is told to join: mostly at the leader, but anybody finds the way, even
        somebody who has only just come."""
        knows = self.leader
        if self.spring is not None and node.core.me.incarnation == 1 and self.random.random() < 0.3:
            knows = self.random.choice(
                [other for other in self.live if other is not node] or [knows]
            )
        return knows.core.me.address

    # Time -----------------------------------------------------------------------------------

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + after_s, next(self._order), action))

    def run(self, *, until_s: float) -> None:
        """Run until every live peer has stopped, or the time is over."""
        while self.now < until_s and self.live:
            due, node = min(
                ((max(node.deadline, node.paused_until), node) for node in self.live),
                key=lambda pair: (pair[0], pair[1].peer),
            )
            if self._heap and self._heap[0][0] <= due:
                self.now, _, action = heapq.heappop(self._heap)
                action()
            elif due < float("inf"):
                self.now = max(self.now, due)
                node.give(v.DeadlineReached())
                if node.running and node.deadline <= due:
                    self.checkers.found(f"{node.peer}: the deadline {due} stays in the past")
                    return
            else:
                return

    # What nodes ask for ---------------------------------------------------------------------

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: int = 0
    ) -> None:
        receiver = self.nodes[to]

        def deliver() -> None:
            if isinstance(event, v.StateReceived):
                receiver.state_arrived(event, value)
            else:
                receiver.give(event, value)

        self.network.carry(sender, to, purpose=purpose, now=self.now, deliver=deliver)

    def dial(self, node: Node, address: str) -> None:
        """Until it works, or the node hangs up."""
        node.dials.add(address)
        self._dial_later(node, address, self.network.delay_s * 3 + 0.01, self.now + FIRST_DIAL_S)

    def hang_up(self, node: Node, other: PeerId) -> None:
        peer = self.nodes.get(other)
        if peer is not None:
            node.dials.discard(peer.core.me.address)
            self.cut(node, peer)

    def gone(self, node: Node) -> None:
        """The process ended: every connection with it does."""
        for other in list(self.nodes.values()):
            if other is not node and self.network.disconnect(node.peer, other.peer):
                other.give(v.PeerDisconnected(node.peer, "end of stream"))
                if node.core.me.address in other.dials:
                    self.dial(other, node.core.me.address)

    def transfer_s(self) -> float:
        return self.random.choice([0.05, 0.5, 3.0])

    def transfer_began(self, joiner: Node, donor: PeerId) -> None:
        """Traps that wait for a transfer go off during it."""
        self.happened["transfer"] += 1
        waiting = [kind for kind, count in sorted(self.traps.items()) if count]
        if not waiting:
            return
        kind, giver = self.random.choice(waiting), self.nodes[donor]
        self.traps[kind] -= 1

        def spring() -> None:
            if self.spring is not None:
                self.spring(kind, joiner, giver)

        if kind == "lie":
            spring()  # Before the donor copies its state.
        else:
            joiner.after(self.random.uniform(0.0, 0.5), spring)

    def steps_of(self, peer: PeerId) -> int:
        """How many inner steps a peer made in all its lives."""
        return self._steps[peer]

    def count_step(self, peer: PeerId, number: int) -> None:
        self._steps[peer] = number

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now:9.3f} {text}")

    def _dial_later(self, node: Node, address: str, delay_s: float, give_up: float) -> None:
        def connect() -> None:
            other = self.nodes[self._by_address[address]]
            if address not in node.dials or self.network.line(node.peer, other.peer).up:
                return
            if other.running:
                self._connect(node, other)
            elif not node.core.log.entries and self.now > give_up:
                node.outcome = "alone"
            else:
                self._dial_later(node, address, REDIAL_S, give_up)

        node.after(delay_s, connect)

    def _connect(self, node: Node, other: Node) -> None:
        """Hellos are exchanged; the side that was dialled may refuse."""
        hello = self._hello(node)
        core = other.core
        why = refusal(hello, me=core.me, run=core.log.run, members=core.members)
        if why:
            self.tell(f"{node.peer} is refused by {other.peer}: {why}")
            node.outcome, node.why = "refused", why
            self.gone(node)
            return
        back = self._hello(other)
        self.network.connect(node.peer, other.peer)
        for me, theirs in ((node, back), (other, hello)):
            me.give(v.PeerConnected(theirs.peer, theirs.incarnation, theirs.address, theirs.leader))

    def _hello(self, node: Node) -> Hello:
        me, run, leader = node.core.me, node.core.log.run, node.core.leader_address()
        return Hello(PROTOCOL_VERSION, run, me.peer, me.name, me.incarnation, me.address, leader)
