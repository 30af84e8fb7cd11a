"""A whole cluster in one thread and virtual time: nodes, links and faults, all from one seed.

Each control message passes through the real encoding. Must NOT judge the run: an observer does.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TextIO

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Append, Appended, ContributionOffered, Control, Hold, Relay
from protocols.messages import log_entries as e
from protocols.state import RunState
from protocols.types import PeerId, ProtocolConfig
from sims.node.node import Node
from sims.node.state_transfer import STATE_CELLS
from sims.node.storage import COMPACT_ENTRIES, HICCUP_S, HICCUPS, SLOW_SYNC_S, SimulatedDisk
from sims.node.toy_model import Model, Modular, Training, Value
from sims.node.world_view import Observer, PendingFaults, WorldSettings
from sims.simulator.connections import WorldDialer
from sims.simulator.limit_values import LimitValues
from sims.simulator.operator import Operator, is_needed_to_decide
from sims.simulator.schedule import VirtualClock
from sims.simulator.story import Story
from sims.simulator.twin_cores import TwinCores
from sims.simulator.virtual_network import Network

ROUNDS_AHEAD = (2, 4, 8)
"""Rounds for which a peer asks for samples in advance, by seed."""
AMBUSHED = (Append, Appended, Hold, ContributionOffered)
"""Messages on which a fault may wait."""
FRAGMENT_ELEMENTS = 3 << 18
"""Elements of a fragment: large enough for three parts; never allocated."""
RULES = ProtocolConfig(
    heartbeat_interval_s=1.0,
    election_timeout_s=3.9,
    election_timeout_min_s=3.0,
    silence_timeout_s=7.0,
    silence_timeout_min_s=4.0,
    reconnect_grace_s=2.5,
    round_grace_s=8.0,
    reduction_timeout_s=6.0,
    transfer_timeout_s=10.0,
    lonely_after_s=1e6,  # Forks have worlds of their own; here there is one log.
    check_owners=False,  # Some worlds check them (Training.checks).
)


class BareWorld(ABC):
    """A world that knows no checker: a subclass makes its observer. `run()` to the end."""

    base_rules = RULES
    """The rules before the changes of a seed."""

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
        """`slow_outer_steps`: replaces `outer_steps` if links are slow. `training`: by default one
        fragment without overlap. `model`: by default Modular."""
        self.random = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
        self.clock = VirtualClock()
        self.story = Story(self.clock, log)
        self.nodes: dict[PeerId, Node] = {}
        """The newest incarnation of each peer."""
        self.faults: PendingFaults[Node] = PendingFaults()
        self.twin_cores = TwinCores(seed, peers=peers)
        training = training or Training()
        # The order of these draws is part of every recorded seed.
        sync_s = self.random.choice([0.0, 0.002, 0.05])
        self.network = Network(self.random, self.clock.at)
        slow = slow_outer_steps if self.network.is_slow else None
        self.settings = WorldSettings(
            rules=replace(self.base_rules, check_owners=training.checks),
            training=training,
            model=model or Modular(),
            peers_min=peers,
            outer_steps=outer_steps if slow is None else slow,
            samples_ahead=ROUNDS_AHEAD[seed % 3] * training.interval_samples,
            compact_entries=self.draw_compaction(seed),
            sync_s=sync_s,
            compute_s=self.random.choice([0.0005, 0.01, 0.2]),
            state_cells=self.random.choice(STATE_CELLS),
        )
        self.limit_values = LimitValues(self.story.happened, on=training.extremes)
        self.operator = Operator(self)
        self.dialer = WorldDialer(self, seed, certified=training.certified)
        self.observer: Observer[Node] = self.make_observer()
        """Sees each action of the world and its nodes."""
        for _ in range(peers):
            self.add_peer()

    # Parts of a world; a subclass makes other ones -------------------------------------------

    @abstractmethod
    def make_observer(self) -> Observer[Node]:
        """Called once, before the first peer is added."""

    def make_node(self, me: Identity, disk: SimulatedDisk, *, contact: str, speed: float) -> Node:
        return Node(self, me, disk, contact=contact, speed=speed)

    def make_run(self, founder: PeerId) -> e.Run:
        """The first log entry, on which all peers agree."""
        settings, training = self.settings, self.settings.training
        sizes = (FRAGMENT_ELEMENTS,) * training.fragments
        of = (settings.peers_min, settings.outer_steps, 1, b"", sizes, founder)
        return e.Run(1, "{}", "", *of, gossip=training.gossip, asks=training.answers)

    # RunState and faults ------------------------------------------------------------------

    @property
    def happened(self) -> Counter[str]:
        """Number of faults that took place, and of their outcomes, by kind."""
        return self.story.happened

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running]

    @property
    def leaders(self) -> list[Node]:
        """Nodes that consider themselves leaders; the one of the newest term is right."""
        return [node for node in self.live if node.core.leads]

    @property
    def heads(self) -> list[RunState]:
        """The state after the whole log of each leader."""
        terms = [node.core.led_term for node in self.leaders]
        return [led_term.head for led_term in terms if led_term is not None]

    @property
    def finished(self) -> bool:
        """True if a node has seen the end of the run."""
        return any(node.process.outcome == "finished" for node in self.nodes.values())

    def add_peer(self, *, witness: bool = False) -> Node:
        """Add a new peer; the first one founds the run."""
        name, number = f"p{len(self.nodes)}", self.random.getrandbits(32)
        peer, address = PeerId(f"{name}.{number:08x}"), f"h{len(self.nodes)}:1"
        me = Identity(peer=peer, name=name, incarnation=1, address=address, witness=witness)
        return self.start_node(self.limit_values.named(me))

    def draw_compaction(self, seed: int) -> int:
        """Number of entries after which a log is compacted into a snapshot."""
        return random.Random(seed ^ 0xC0).choice(COMPACT_ENTRIES)  # noqa: S311

    def stopped(self, node: Node, stop: c.Stop) -> None:
        """Called when a peer has stopped by itself."""
        self.story.peer_ended()
        if stop.outcome == "refused":
            self.operator.lost_peer()

    def revive(self, node: Node, after_s: float) -> None:
        """Start a dead peer again after this time."""
        old = node.me
        new = replace(old, incarnation=old.incarnation + 1)

        def start() -> None:
            if self.nodes[old.peer] is node and not node.running:
                self.story.happened["revived"] += 1
                self.start_node(new)

        self.clock.at(after_s, start)

    def kill(self, node: Node) -> None:
        """End the process at once. Tickets on their way to the disk may have been written."""
        self.story.tell(f"kill {node.peer}{' (leads)' if node.core.leads else ''}")
        self.story.happened["leader killed"] += node.core.leads
        node.process.alive = False
        self.lost_state()
        if node.wal_writer.writes:
            # The first write is made: else the founder would found another run of its name.
            node.wal_writer.killed(synced=node.disk.saved is None or self.random.random() < 0.5)
        self.dialer.process_ended(node)

    def lost_state(self) -> None:
        """Called when a peer that held a state has gone. While another state is corrupt, the lost
        one may have been the last good one."""
        if any(node.states.corrupt for node in self.live):
            self.observer.true_state_lost()

    def pause(self, node: Node, seconds: float) -> None:
        self.story.tell(f"pause {node.peer} for {seconds:.2f} s")
        node.turns.pause(self.clock.now + seconds)

    def heal(self) -> None:
        """End all faults, and start a majority of the voters, so that the run can go on."""
        self.faults.clear()
        self.observer.healed(self)
        self.network.heal()
        for disk in (node.disk for node in self.nodes.values()):
            disk.full_until = disk.slow_until = disk.hung_until = 0.0
        self.operator.heal()

    def is_needed(self, node: Node, coming_back: Set[PeerId]) -> bool:
        """True if the run cannot go on without this node. `coming_back`: peers that start again."""
        return is_needed_to_decide(self, node, coming_back)

    def start_node(self, me: Identity) -> Node:
        first, before = next(iter(self.nodes), me.peer), self.nodes.get(me.peer)
        if before is None:
            disk = SimulatedDisk(checkpoint_every=self.random.choice([1, 3, 8]))
        else:
            disk = before.disk
        founds = me.peer == first and disk.saved is None
        speed = self.random.choice([0.05, 0.05, 0.06, 0.1])
        if before is not None:
            self.story.past_moves.update(before.raft.term_state.role_changes)
        contact = "" if founds else self.operator.way_in(me.peer)
        node = self.make_node(me, disk, contact=contact, speed=speed)
        self.nodes[me.peer] = node
        self.observer.woke(node)
        self.dialer.listens(node)
        self.dialer.certification.begins(node)
        if founds:
            self.operator.found_run(node)
        else:
            node.give(v.DeadlineReached())
        if not me.witness:
            node.after(self.random.uniform(0.0, 2.0), lambda: node.give(v.TrainersReady()))
        return node

    def is_elsewhere(self, node: Node, peer: PeerId) -> bool:
        """True if the peer may be told to join at this node."""
        return node.peer != peer

    # Time -----------------------------------------------------------------------------------

    def run(self, *, until_s: float) -> None:
        """Run until every live peer has stopped, or the time is over."""
        nodes = self.nodes
        clock, operator = self.clock, self.operator
        while clock.now < until_s:
            if clock.now >= operator.busy_until and not any(x.running for x in nodes.values()):
                return
            following = clock.take()
            if following is None:
                return
            due, what = following
            if not isinstance(what, str):
                clock.now = due
                what()
                continue
            node = nodes[PeerId(what)]
            if due != node.turns.due or not node.running:
                continue  # The node has ended, or has another deadline.
            clock.now = max(clock.now, due)
            node.give(v.DeadlineReached())
            if node.running and node.turns.wakes_at <= due:
                self.observer.found(f"{node.peer}: the deadline {due} stays in the past")
                return

    # Called by nodes ------------------------------------------------------------------------

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: Value = 0
    ) -> None:
        receiver = self.nodes[to]
        take = receiver.transfers.arrived if isinstance(event, v.CellReceived) else receiver.give
        begin = partial(receiver.give, event.begun) if isinstance(event, v.SliceReceived) else None
        deliver = partial(take, event, value)
        now = self.clock.now
        self.network.carry(sender, to, purpose=purpose, now=now, deliver=deliver, begin=begin)

    def sent(self, node: Node, to: PeerId, message: Control) -> None:
        """Called for each message that a peer is about to send."""
        self.observer.sent(node, to, message)
        if isinstance(message, Relay):
            self.story.relayed(node.peer)
        if self.faults.ambush is not None and isinstance(message, AMBUSHED):
            self.faults.ambush(node, message)

    def sync_s(self, disk: SimulatedDisk) -> float:
        """Seconds that a write takes; now and then other work keeps the disk busy."""
        busy_s = HICCUP_S if self.random.random() < HICCUPS else 0.0
        if self.clock.now < disk.slow_until:
            busy_s += SLOW_SYNC_S
        return busy_s + self.settings.sync_s * self.random.uniform(0.5, 2.0)

    def record(self, node: Node, event: v.Event, value: Value, out: Sequence[c.Command]) -> None:
        """Log an event and its commands, to compare two runs or to study one."""
        if self.story.log is not None:
            peer = f"{self.clock.now!r} {node.peer}/{node.me.incarnation}"
            lines = [f"{peer} < {event!r} {value}\n", *(f"{peer} > {x!r}\n" for x in out)]
            self.story.log.writelines(lines)
