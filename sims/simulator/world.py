"""A whole cluster in one thread and virtual time: nodes, lines and faults, all from one seed.

One message in 25 passes through the real encoding. Must NOT judge what happens: checkers do.
"""

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TextIO

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages import log_entries as e
from protocols.messages.peer import Append, Appended, Control, Hold, Ready, Relay
from protocols.raft.roles import Role
from protocols.state import gossip_pairs
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig
from sims.checkers import Checkers
from sims.node.node import Node
from sims.node.ranks import Training
from sims.node.state_transfer import STATE_CELLS
from sims.node.storage import COMPACT_ENTRIES, HICCUP_S, HICCUPS, SLOW_SYNC_S, Disk
from sims.node.toy_model import Model, Modular, Value, state_digest
from sims.simulator.connections import Dialling
from sims.simulator.limit_values import Extremes
from sims.simulator.network import Network
from sims.simulator.twin_cores import Twins

AMBUSHED = (Append, Appended, Hold, Ready)
"""What a fault may wait for."""
FRAGMENT_ELEMENTS = 3 << 18
"""Big enough for three parts; nobody allocates it."""
RULES = ProtocolConfig(
    heartbeat_interval_s=1.0,
    election_timeout_s=3.0,
    silence_timeout_s=6.0,
    reconnect_grace_s=2.5,
    round_grace_s=8.0,
    reduction_timeout_s=6.0,
    transfer_timeout_s=10.0,
    lonely_after_s=1e6,  # Forks have worlds of their own: here there is one log.
)


class World:
    """`run()` to the end; `checkers` hold what was violated."""

    rules = RULES

    def __init__(
        self,
        seed: int,
        *,
        peers: int,
        outer_steps: int,
        slow_outer_steps: int | None = None,
        training: Training | None = None,
        log: TextIO | None = None,
        model: Model | None = None,
    ) -> None:
        """`slow_outer_steps`: other than `outer_steps` where lines are slow; `training`: how, with
        one fragment and no overlap if nobody says; `model`: what, Modular if nobody says."""
        self.random = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
        self.model: Model = model or Modular()
        self.twins = Twins(seed, peers=peers)
        self.now = 0.0
        self.training = training or Training()
        self.outer_steps, self.peers_min = outer_steps, peers
        self.nodes: dict[PeerId, Node] = {}
        """The newest life of each peer."""
        self.disks: dict[PeerId, Disk] = {}
        self.busy_until = float("inf")  # Until then somebody may come, though nobody lives.
        self.ended_at = 0.0  # When somebody went by itself, last.
        self._coming_back: set[PeerId] = set()
        self.samples_ahead = self.draw_rounds_ahead(seed) * self.training.interval_samples
        self.compact_entries = self.draw_compaction(seed)
        """A peer's log becomes a snapshot when it is somewhat longer."""
        self._sync_s = self.random.choice([0.0, 0.002, 0.05])
        self.network = Network(self.random, self.at)
        if slow_outer_steps is not None and self.network.is_slow:
            self.outer_steps = slow_outer_steps
        self.dialling = Dialling(self, seed)
        self.compute_s = self.random.choice([0.0005, 0.01, 0.2])
        """What a job of the shell takes."""
        self.checkers = self.make_checkers()
        self.happened: Counter[str] = Counter()
        self.extremes = Extremes(self.happened, on=self.training.extremes)
        self.story: list[str] = []
        self.log = log
        """Where every event and every command goes, if anywhere."""
        self.state_cells = self.random.choice(STATE_CELLS)
        self.traps: dict[str, int] = {}
        """Faults that wait for the next state transfer: how many of each kind."""
        self.ambush: Callable[[Node, Control], None] | None = None
        """Called with (sender, message) for what a fault may wait for."""
        self.spring: Callable[[str, Node, Node], None] | None = None
        """Called with (kind, joiner, donor) when a trap goes off."""
        self._planned: tuple[PeerId, float] | None = None
        """Which leader made a plan of relays last, and when."""
        self._by_address: dict[str, PeerId] = {}
        self._moves: Counter[tuple[Role, Role]] = Counter()
        """Of lives that are over."""
        self._steps: Counter[PeerId] = Counter()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._wakes: list[tuple[float, PeerId]] = []
        """A heap: when each core wants to be woken. One that changed its mind is in it twice: what
        is not its `due` any more is skipped."""
        self._order = itertools.count()
        for _ in range(peers):
            self.add_peer()

    # What a world is made of: one of another kind makes other things -------------------------

    def make_checkers(self) -> Checkers:
        return Checkers()

    def make_node(self, me: Identity, disk: Disk, *, contact: str, speed: float) -> Node:
        return Node(self, me, disk, contact=contact, speed=speed)

    def make_run(self, founder: PeerId) -> e.Run:
        """What its peers agree on."""
        sizes = (FRAGMENT_ELEMENTS,) * self.training.fragments
        of = (self.peers_min, self.outer_steps, 1, b"", sizes, founder)
        return e.Run(1, "{}", "", *of, gossip=self.training.gossip, asks=self.training.answers)

    def digest_of(self, round_: int, outer: Value) -> str:
        """Of the state after this round, as the run's shells have it."""
        return gossip_pairs.state_digest(round_) if self.training.gossip else state_digest(outer)

    # Membership and faults ------------------------------------------------------------------

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running]

    @property
    def leaders(self) -> list[Node]:
        """Those that believe to lead; the one of the newest term is right."""
        return [node for node in self.live if node.core.leads]

    @property
    def finished(self) -> bool:
        """Somebody saw the run to its end."""
        return any(node.outcome == "finished" for node in self.nodes.values())

    def add_peer(self, *, witness: bool = False) -> Node:
        """A new peer; the first one founds the run."""
        name, number = f"p{len(self.disks)}", self.random.getrandbits(32)
        peer, address = PeerId(f"{name}.{number:08x}"), f"h{len(self.disks)}:1"
        me = Identity(peer=peer, name=name, incarnation=1, address=address, witness=witness)
        return self.start(self.extremes.named(me))

    def restart(self, node: Node) -> None:
        """The daemon dies and comes back: the same peer, with what its disk has."""
        self.kill(node)
        self.revive(node, self.random.choice([0.05, 1.0, 4.0]))

    def draw_compaction(self, seed: int) -> int:
        """In how many entries' time a log becomes a snapshot."""
        return random.Random(seed ^ 0xC0).choice(COMPACT_ENTRIES)  # noqa: S311

    def draw_rounds_ahead(self, seed: int) -> int:
        """For how many rounds a peer wants samples leased."""
        return (2, 4, 8)[seed % 3]

    def stopped(self, node: Node, stop: c.Stop) -> None:
        """A peer ended by itself."""

    def revive(self, node: Node, after_s: float) -> None:
        """A dead peer is started again."""
        old = node.core.me
        new = replace(old, incarnation=old.incarnation + 1)

        def start() -> None:
            if self.nodes[old.peer] is node and not node.running:
                self.happened["revived"] += 1
                self.start(new)

        self.at(after_s, start)

    def kill(self, node: Node) -> None:
        """The process ends at once. What was on its way to the disk may have come there."""
        self.tell(f"kill {node.peer}{' (leads)' if node.core.leads else ''}")
        self.happened["leader killed"] += node.core.leads
        node.alive = False
        self.lost_state()
        if node.scribe.tickets:
            # The first one did: else its founder would found another run, of the same name.
            node.scribe.killed(synced=node.disk.saved is None or self.random.random() < 0.5)
        self.dialling.gone(node)

    def lost_state(self) -> None:
        """Who held a state is gone: while another one is corrupt, it may have been the last."""
        if any(node.corrupt for node in self.live):
            self.checkers.tainted = True

    def pause(self, node: Node, seconds: float) -> None:
        self.tell(f"pause {node.peer} for {seconds:.2f} s")
        # Not shorter than it was: what waits for the end of the first pause would come too late.
        node.paused_until = max(node.paused_until, self.now + seconds)
        self.wake(node, max(node.turns.wakes_at, node.paused_until))

    def cut(self, one: Node, other: Node) -> None:
        """The connection between two peers ends; whoever dialled dials again."""
        self.dialling.cut(one, other)

    def heal(self) -> None:
        """No more faults; a majority of the voters lives, so that the run can go on."""
        self.busy_until = self.now + 30.0
        self.traps.clear()
        self.spring = self.ambush = None
        self.checkers.healed(self)
        self.network.heal()
        for disk in self.disks.values():
            disk.full_until = disk.slow_until = 0.0
        everybody = not self.finished and self.random.random() < 0.5
        self._bring_back(everybody=everybody)
        if not (self.finished or self._coming_back or self.live):
            self.revive(next(iter(self.nodes.values())), 0.1)  # It died before anything began.
        self.at(15.0, self._top_up)

    def _bring_back(self, *, everybody: bool) -> None:
        out = [node for node in self.nodes.values() if not node.running]
        for node in [node for node in out if not (self.finished and node.outcome)]:
            if (everybody and not node.asked_to_leave) or self._is_needed(node):
                self.revive(node, 0.1)
                self._coming_back.add(node.peer)

    def gave_up(self) -> None:
        """A peer got no answer: maybe all peers that it was told of have left. The cluster's
        operator starts another one, once no faults are to come that do it anyway."""
        if math.isfinite(self.busy_until) and not self.finished:
            self.at(0.1, self._top_up)

    def _top_up(self) -> None:
        """As many as the run needs to begin and to decide: some may have gone without a leader."""
        self._bring_back(everybody=False)
        training = [node for node in self.live if not node.core.me.witness]
        staying = sum(not (n.asked_to_leave or self.dialling.gates.bans(n)) for n in training)
        for _ in range(0 if self.finished else self.peers_min - staying):
            self.add_peer()

    def _is_needed(self, node: Node) -> bool:
        """Somebody's log has voters that are no majority without it. Once somebody has finished:
        of those who are in the run yet, because it went back behind its end. Before: nobody else
        could let in whom the run needs to begin."""
        if not self.finished and self.dialling.gates.needs(node):
            return True
        # Who was asked to leave may go yet, and while nobody leads without being written out.
        staying = {n.peer for n in self.nodes.values() if n.running and not n.asked_to_leave}
        back = staying | self._coming_back
        others = self.live if self.finished else self.nodes.values()
        votes = [other.core.raft.log.voters for other in others]
        return any(
            node.peer in voters and 2 * len(back.intersection(voters)) <= len(voters)
            for voters in votes
        )

    def start(self, me: Identity) -> Node:
        first = next(iter(self.disks), me.peer)
        if me.peer not in self.disks:
            self.disks[me.peer] = Disk(checkpoint_every=self.random.choice([1, 3, 8]))
        disk = self.disks[me.peer]
        founds = me.peer == first and disk.saved is None
        speed = self.random.choice([0.05, 0.05, 0.06, 0.1])
        if me.peer in self.nodes:
            self._moves.update(self.nodes[me.peer].core.raft.moves)
        contact = "" if founds else self._way_in(me.peer)
        node = self.make_node(me, disk, contact=contact, speed=speed)
        self.nodes[me.peer] = node
        self.checkers.woke(node)
        self._by_address[me.address] = me.peer
        self.dialling.gates.begins(node)
        if founds:
            self._found(node)
        else:
            node.give(v.DeadlineReached())
        if not me.witness:
            node.after(self.random.uniform(0.0, 2.0), lambda: node.give(v.TrainersReady()))
        return node

    def _found(self, node: Node) -> None:
        """The first peer begins the run, from a checkpoint of its initial state."""
        digests = node.found([self.model.initial(self.random) for _ in node.outers])
        run = self.extremes.run(self.make_run(node.peer))
        node.give(v.RunAccepted(self.rules, self.samples_ahead))
        node.give(v.Bootstrap(run, digests))

    def _way_in(self, peer: PeerId) -> str:
        """Where a peer is told to join: anybody finds the way, even who has only just come."""
        places = [node for node in self.nodes.values() if self.is_elsewhere(node, peer)]
        places = [node for node in places if not self.dialling.gates.bans(node)] or places
        live = [node for node in places if node.running]
        knows = [node for node in live if node.core.members.run is not None]
        if not knows and peer in self.nodes and self.disks[peer].saved is None:
            # Two that come back, each told of the other, would never hear of who founds the run.
            places, live = places[:1], []
        return self.random.choice(knows or live or places).core.me.address

    def is_elsewhere(self, node: Node, peer: PeerId) -> bool:
        """May the peer be told to join there?"""
        return node.peer != peer

    # Time -----------------------------------------------------------------------------------

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        self.at_time(self.now + after_s, action)

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """As `at`, exactly then: what was held up by one pause keeps its order."""
        heapq.heappush(self._heap, (due, next(self._order), action))

    def run(self, *, until_s: float) -> None:
        """Run until every live peer has stopped, or the time is over."""
        heap, wakes, nodes = self._heap, self._wakes, self.nodes
        while self.now < until_s and (self.now < self.busy_until or self._anybody()):
            if heap and (not wakes or heap[0][0] <= wakes[0][0]):
                self.now, _, action = heapq.heappop(heap)
                action()
            elif wakes:
                due, node = wakes[0][0], nodes[wakes[0][1]]
                if due != node.due or not node.running:
                    heapq.heappop(wakes)  # It is gone, or wants to be woken at another time by now.
                    continue
                self.now = max(self.now, due)
                node.give(v.DeadlineReached())
                if node.running and node.turns.wakes_at <= due:
                    self.checkers.found(f"{node.peer}: the deadline {due} stays in the past")
                    return
            else:
                return

    def wake(self, node: Node, due: float) -> None:
        """From now on the node is woken then, and not when it was to be before."""
        node.due = due
        if due < float("inf"):
            heapq.heappush(self._wakes, (due, node.peer))

    def _anybody(self) -> bool:
        return any(node.running for node in self.nodes.values())

    # What nodes ask for ---------------------------------------------------------------------

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: Value = 0
    ) -> None:
        receiver = self.nodes[to]
        take = receiver.transfers.arrived if isinstance(event, v.CellReceived) else receiver.give
        begin = partial(receiver.give, event.begun) if isinstance(event, v.SliceReceived) else None
        deliver = partial(take, event, value)
        self.network.carry(sender, to, purpose=purpose, now=self.now, deliver=deliver, begin=begin)

    def sent(self, node: Node, to: PeerId, message: Control) -> None:
        """Something is about to leave a peer."""
        self.checkers.sent(node, to, message)
        if isinstance(message, Relay) and self._planned != (node.peer, self.now):
            self._planned = (node.peer, self.now)  # One plan is a message to each relay.
            self.happened["relay plan"] += 1
        if self.ambush is not None and isinstance(message, AMBUSHED):
            self.ambush(node, message)

    def sync_s(self, disk: Disk) -> float:
        """What the disk takes; now and then something else keeps it busy."""
        busy_s = HICCUP_S if self.random.random() < HICCUPS else 0.0
        if self.now < disk.slow_until:
            busy_s += SLOW_SYNC_S
        return busy_s + self._sync_s * self.random.uniform(0.5, 2.0)

    def transfer_s(self) -> float:
        return self.random.choice([0.05, 0.5, 3.0])

    def begun(self, node: Node) -> None:
        """A peer read the first entry; its founder keeps the state that it began with."""
        if node.core.standing.accepted:
            node.keep_first()

    def moves(self) -> Counter[tuple[Role, Role]]:
        """Changes of role that anybody made, dead lives included."""
        total = Counter(self._moves)
        for node in self.nodes.values():
            total.update(node.core.raft.moves)
        return total

    def steps_of(self, peer: PeerId) -> int:
        """How many inner steps a peer made in all its lives."""
        return self._steps[peer]

    def count_step(self, peer: PeerId, number: int) -> None:
        self._steps[peer] = number

    def record(self, node: Node, event: v.Event, value: Value, out: Sequence[c.Command]) -> None:
        """For whoever compares two runs, or wants to know it exactly."""
        if self.log is not None:
            who = f"{self.now!r} {node.peer}/{node.core.me.incarnation}"
            lines = [f"{who} < {event!r} {value}\n", *(f"{who} > {x!r}\n" for x in out)]
            self.log.writelines(lines)

    def who_listens(self, address: str) -> Node:
        """The newest life of the peer that has this address."""
        return self.nodes[self._by_address[address]]

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now:9.3f} {text}")
