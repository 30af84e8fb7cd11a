"""A whole cluster in one thread and virtual time: nodes, links and faults, all from one seed.

Each control message passes through the real encoding. Must NOT judge the run: an observer does.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TextIO

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Append, Appended, Control, Hold, Ready, Relay
from protocols.messages import log_entries as e
from protocols.raft import Role
from protocols.state import RunState, gossip_pairs
from protocols.types import PeerId, ProtocolConfig
from sims.node.node import Node
from sims.node.state_transfer import STATE_CELLS
from sims.node.storage import COMPACT_ENTRIES, HICCUP_S, HICCUPS, SLOW_SYNC_S, SimulatedDisk
from sims.node.toy_model import Model, Modular, Training, Value, state_digest
from sims.node.world_view import Observer
from sims.simulator.connections import WorldDialer
from sims.simulator.limit_values import LimitValues
from sims.simulator.network import Network
from sims.simulator.operator import Operator, is_needed_to_decide
from sims.simulator.schedule import Schedule
from sims.simulator.twin_cores import TwinCores

AMBUSHED = (Append, Appended, Hold, Ready)
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
        """`slow_outer_steps`: replaces `outer_steps` if links are slow. `training`: by default one
        fragment without overlap. `model`: by default Modular."""
        self.random = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
        self.model: Model = model or Modular()
        self.twin_cores = TwinCores(seed, peers=peers)
        self.now = 0.0
        self.training = training or Training()
        self.rules = replace(self.rules, check_owners=self.training.checks)
        self.outer_steps, self.peers_min = outer_steps, peers
        self.nodes: dict[PeerId, Node] = {}
        """The newest incarnation of each peer."""
        self.disks: dict[PeerId, SimulatedDisk] = {}
        self.busy_until = float("inf")  # Until then a peer may come, even if none lives.
        self.ended_at = 0.0  # The last time at which a peer stopped by itself.
        self.operator = Operator(self)
        self.samples_ahead = self.draw_rounds_ahead(seed) * self.training.interval_samples
        self.compact_entries = self.draw_compaction(seed)
        """A peer's log is compacted into a snapshot when it has more entries than this."""
        self._sync_s = self.random.choice([0.0, 0.002, 0.05])
        self.network = Network(self.random, self.at)
        if slow_outer_steps is not None and self.network.is_slow:
            self.outer_steps = slow_outer_steps
        self.dialer = WorldDialer(self, seed, certified=self.training.certified)
        self.certification = self.dialer.certification
        self.compute_s = self.random.choice([0.0005, 0.01, 0.2])
        """Seconds that a job of the shell takes."""
        self.observer: Observer[Node] = self.make_observer()
        """Sees each action of the world and its nodes."""
        self.happened: Counter[str] = Counter()
        self.limit_values = LimitValues(self.happened, on=self.training.extremes)
        self.story: list[str] = []
        self.log = log
        """File to which every event and every command is written; None: no log."""
        self.state_cells = self.random.choice(STATE_CELLS)
        self.traps: dict[str, int] = {}
        """By kind: number of faults that wait for the next state transfer."""
        self.ambush: Callable[[Node, Control], None] | None = None
        """Called with (sender, message) for messages of the AMBUSHED types."""
        self.spring: Callable[[str, Node, Node], None] | None = None
        """Called with (kind, joiner, donor) when a trap goes off."""
        self._planned: tuple[PeerId, float] | None = None
        """(leader, time) of the last relay plan."""
        self._by_address: dict[str, PeerId] = {}
        self.past_moves: Counter[tuple[Role, Role]] = Counter()
        """Changes of role in incarnations that have ended."""
        self.steps: Counter[PeerId] = Counter()
        """Number of inner steps that each peer has made in all its incarnations."""
        self._schedule = Schedule()
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
        sizes = (FRAGMENT_ELEMENTS,) * self.training.fragments
        of = (self.peers_min, self.outer_steps, 1, b"", sizes, founder)
        return e.Run(1, "{}", "", *of, gossip=self.training.gossip, asks=self.training.answers)

    def digest_of(self, round_: int, outer: Value) -> str:
        """Digest of the state after this round, as the run's shells compute it."""
        return gossip_pairs.state_digest(round_) if self.training.gossip else state_digest(outer)

    # RunState and faults ------------------------------------------------------------------

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
        return any(node.outcome == "finished" for node in self.nodes.values())

    def add_peer(self, *, witness: bool = False) -> Node:
        """Add a new peer; the first one founds the run."""
        name, number = f"p{len(self.disks)}", self.random.getrandbits(32)
        peer, address = PeerId(f"{name}.{number:08x}"), f"h{len(self.disks)}:1"
        me = Identity(peer=peer, name=name, incarnation=1, address=address, witness=witness)
        return self.start_node(self.limit_values.named(me))

    def draw_compaction(self, seed: int) -> int:
        """Number of entries after which a log is compacted into a snapshot."""
        return random.Random(seed ^ 0xC0).choice(COMPACT_ENTRIES)  # noqa: S311

    def draw_rounds_ahead(self, seed: int) -> int:
        """Number of rounds for which a peer asks for samples in advance."""
        return (2, 4, 8)[seed % 3]

    def stopped(self, node: Node, stop: c.Stop) -> None:
        """Called when a peer has stopped by itself."""
        self.ended_at = self.now

    def revive(self, node: Node, after_s: float) -> None:
        """Start a dead peer again after this time."""
        old = node.me
        new = replace(old, incarnation=old.incarnation + 1)

        def start() -> None:
            if self.nodes[old.peer] is node and not node.running:
                self.happened["revived"] += 1
                self.start_node(new)

        self.at(after_s, start)

    def kill(self, node: Node) -> None:
        """End the process at once. Tickets on their way to the disk may have been written."""
        self.tell(f"kill {node.peer}{' (leads)' if node.core.leads else ''}")
        self.happened["leader killed"] += node.core.leads
        node.alive = False
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
        self.tell(f"pause {node.peer} for {seconds:.2f} s")
        # Never shorten a pause: actions that wait for its end would run too late.
        node.paused_until = max(node.paused_until, self.now + seconds)
        self.wake(node, max(node.turns.wakes_at, node.paused_until))

    def cut_connection(self, one: Node, other: Node) -> None:
        """End the connection between two peers; the side that dialled dials again."""
        self.dialer.cut_connection(one, other)

    def heal(self) -> None:
        """End all faults, and start a majority of the voters, so that the run can go on."""
        self.busy_until = self.now + 30.0
        self.traps.clear()
        self.spring = self.ambush = None
        self.observer.healed(self)
        self.network.heal()
        for disk in self.disks.values():
            disk.full_until = disk.slow_until = disk.hung_until = 0.0
        self.operator.heal()

    def gave_up(self) -> None:
        """A peer got no answer, perhaps since all peers that it knew have left."""
        self.operator.gave_up()

    def is_needed(self, node: Node, coming_back: Set[PeerId]) -> bool:
        """True if the run cannot go on without this node. `coming_back`: peers that start again."""
        return is_needed_to_decide(self, node, coming_back)

    def start_node(self, me: Identity) -> Node:
        first = next(iter(self.disks), me.peer)
        if me.peer not in self.disks:
            self.disks[me.peer] = SimulatedDisk(checkpoint_every=self.random.choice([1, 3, 8]))
        disk = self.disks[me.peer]
        founds = me.peer == first and disk.saved is None
        speed = self.random.choice([0.05, 0.05, 0.06, 0.1])
        if me.peer in self.nodes:
            self.past_moves.update(self.nodes[me.peer].raft.term_state.role_changes)
        contact = "" if founds else self.operator.way_in(me.peer)
        node = self.make_node(me, disk, contact=contact, speed=speed)
        self.nodes[me.peer] = node
        self.observer.woke(node)
        self._by_address[me.address] = me.peer
        self.certification.begins(node)
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

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        self.at_time(self.now + after_s, action)

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """As `at`, at exactly this time: actions delayed by one pause keep their order."""
        self._schedule.put(due, action)

    def run(self, *, until_s: float) -> None:
        """Run until every live peer has stopped, or the time is over."""
        nodes = self.nodes
        while self.now < until_s:
            if self.now >= self.busy_until and not any(node.running for node in nodes.values()):
                return
            following = self._schedule.take()
            if following is None:
                return
            due, what = following
            if not isinstance(what, str):
                self.now = due
                what()
                continue
            node = nodes[PeerId(what)]
            if due != node.due or not node.running:
                continue  # The node has ended, or has another deadline.
            self.now = max(self.now, due)
            node.give(v.DeadlineReached())
            if node.running and node.turns.wakes_at <= due:
                self.observer.found(f"{node.peer}: the deadline {due} stays in the past")
                return

    def wake(self, node: Node, due: float) -> None:
        """Set the time at which the node is woken; it replaces the earlier one."""
        node.due = due
        if due < float("inf"):
            self._schedule.wake(due, node.peer)

    # Called by nodes ------------------------------------------------------------------------

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: Value = 0
    ) -> None:
        receiver = self.nodes[to]
        take = receiver.transfers.arrived if isinstance(event, v.CellReceived) else receiver.give
        begin = partial(receiver.give, event.begun) if isinstance(event, v.SliceReceived) else None
        deliver = partial(take, event, value)
        self.network.carry(sender, to, purpose=purpose, now=self.now, deliver=deliver, begin=begin)

    def sent(self, node: Node, to: PeerId, message: Control) -> None:
        """Called for each message that a peer is about to send."""
        self.observer.sent(node, to, message)
        if isinstance(message, Relay) and self._planned != (node.peer, self.now):
            self._planned = (node.peer, self.now)  # One plan is a message to each relay.
            self.happened["relay plan"] += 1
        if self.ambush is not None and isinstance(message, AMBUSHED):
            self.ambush(node, message)

    def sync_s(self, disk: SimulatedDisk) -> float:
        """Seconds that a write takes; now and then other work keeps the disk busy."""
        busy_s = HICCUP_S if self.random.random() < HICCUPS else 0.0
        if self.now < disk.slow_until:
            busy_s += SLOW_SYNC_S
        return busy_s + self._sync_s * self.random.uniform(0.5, 2.0)

    def begun(self, node: Node) -> None:
        """Called when a peer reads the first entry. The founder keeps its initial state."""
        if node.member_status.accepted:
            node.states.keep_first()

    def record(self, node: Node, event: v.Event, value: Value, out: Sequence[c.Command]) -> None:
        """Log an event and its commands, to compare two runs or to study one."""
        if self.log is not None:
            who = f"{self.now!r} {node.peer}/{node.me.incarnation}"
            lines = [f"{who} < {event!r} {value}\n", *(f"{who} > {x!r}\n" for x in out)]
            self.log.writelines(lines)

    def who_listens(self, address: str) -> Node | None:
        """The newest incarnation of the peer with this address; None: there is no such peer."""
        peer = self._by_address.get(address)
        return self.nodes[peer] if peer is not None else None

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now:9.3f} {text}")
