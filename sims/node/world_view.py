"""The world as its nodes see it: time, lines, faults that wait, and the observer of the run.

sims/simulator has such worlds; their observers are sets of checkers (sims/checkers). Must NOT name
a value that neither a node nor a checker of a node uses, nor know the class of the nodes (`NodeT`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar

from protocols.interface import Connect
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import Control
from protocols.messages import log_entries as e
from protocols.peer import PeerCore
from protocols.state import gossip_pairs
from protocols.types import PeerId, ProtocolConfig, Stamp
from sims.node.storage import SimulatedDisk
from sims.node.toy_model import Model, ToyContribution, Training, Value, state_digest

NodeT = TypeVar("NodeT")
ActorT_contra = TypeVar("ActorT_contra", contravariant=True)
"""As NodeT, where nodes are only handed over."""


class LineView(Protocol):
    """The link between two peers."""

    up: bool
    connection: int
    """Number of connections so far."""
    stalled_until: dict[PeerId, float]
    """By sender: time before which none of its payloads arrives."""
    held_until: float
    """Time at which the last payload delayed by a stall arrives."""


class NetworkView(Protocol):
    """The links of all pairs of peers."""

    @property
    def slowest_s(self) -> float:
        """The longest time in seconds that a message takes without stalls."""
        ...

    def line(self, one: PeerId, other: PeerId) -> LineView: ...


class CertificationView(Protocol[ActorT_contra]):
    """Admission to the run."""

    def carry_out(self, node: ActorT_contra, command: c.AtTheGate) -> None:
        """Carry out a command of a core."""
        ...


class DialerView(Protocol[ActorT_contra]):
    """The connections of all peers."""

    @property
    def certification(self) -> CertificationView[ActorT_contra]: ...

    def dial(self, node: ActorT_contra, connect: Connect) -> None:
        """Dial until the connection is open, or the node hangs up."""
        ...

    def hang_up(self, node: ActorT_contra, other: PeerId) -> None: ...

    def process_ended(self, node: ActorT_contra) -> None:
        """End every connection of a node after the end of its process."""
        ...


class TwinCoresView(Protocol[ActorT_contra]):
    """Second cores, with which the cores of nodes are compared."""

    def born(self, core: PeerCore, disk: SimulatedDisk, *, contact: str) -> None:
        """Begin an incarnation of a peer with this core and this disk."""
        ...

    def compare(self, node: ActorT_contra, event: v.Event, commands: Sequence[c.Command]) -> None:
        """Compare the commands of a core with those of its twin, after the same event."""
        ...


class LimitValuesView(Protocol):
    """Limit values."""

    def event(self, event: v.Event) -> v.Event:
        """The same event, in some worlds with values at their limits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """Values of one world that were given or drawn at its begin."""

    rules: ProtocolConfig
    training: Training
    model: Model
    peers_min: int
    """Training peers that the run needs to begin."""
    outer_steps: int
    samples_ahead: int
    """Samples that a peer asks for in advance."""
    compact_entries: int
    """A peer's log is compacted into a snapshot when it has more entries than this."""
    sync_s: float
    """Seconds that a write to a disk takes, about."""
    compute_s: float
    """Seconds that a job of the shell takes."""
    state_cells: int
    """Cells of a fragment's state."""

    def digest_of(self, round_: int, outer: Value) -> str:
        """Digest of the state after this round, as the run's shells compute it."""
        return gossip_pairs.state_digest(round_) if self.training.gossip else state_digest(outer)


class PendingFaults(Generic[NodeT]):
    """Faults of one world that wait for their moment."""

    def __init__(self) -> None:
        self.traps: dict[str, int] = {}
        """By kind: number of faults that wait for the next state transfer."""
        self.spring: Callable[[str, NodeT, NodeT], None] | None = None
        """Called with (kind, joiner, donor) when a trap goes off."""
        self.ambush: Callable[[NodeT, Control], None] | None = None
        """Called with (sender, message) for the messages on which a fault may wait; None: all
        faults have ended."""

    def clear(self) -> None:
        """No fault happens from now on."""
        self.traps.clear()
        self.spring = self.ambush = None


class ClockView(Protocol):
    """Virtual time."""

    now: float
    """Seconds."""

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        """Run an action in so many seconds."""
        ...

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """As `at`, at exactly this time."""
        ...

    def wake(self, due: float, peer: PeerId) -> None:
        """Wake a core at this time; infinity: never."""
        ...


class StoryView(Protocol):
    """What happened in a world."""

    happened: Counter[str]
    """Number of faults that took place, and of their outcomes, by kind."""
    steps: Counter[PeerId]
    """Number of inner steps that each peer has made in all its incarnations."""

    def tell(self, text: str) -> None:
        """Add a line for people."""
        ...


class WorldView(Protocol[NodeT]):
    """One world. Its nodes change only the counts of `story` and the traps of `faults`."""

    settings: WorldSettings
    random: Random
    observer: Observer[NodeT]
    nodes: dict[PeerId, NodeT]
    """The newest incarnation of each peer."""
    faults: PendingFaults[NodeT]

    @property
    def clock(self) -> ClockView: ...

    @property
    def story(self) -> StoryView: ...

    @property
    def happened(self) -> Counter[str]:
        """Number of faults that took place, and of their outcomes, by kind."""
        ...

    @property
    def live(self) -> list[NodeT]: ...

    @property
    def network(self) -> NetworkView: ...

    @property
    def dialer(self) -> DialerView[NodeT]: ...

    @property
    def twin_cores(self) -> TwinCoresView[NodeT]: ...

    @property
    def limit_values(self) -> LimitValuesView: ...

    # Messages, payloads and disks -----------------------------------------------------------

    def sent(self, node: NodeT, to: PeerId, message: Control) -> None:
        """Called for each message that a peer is about to send."""
        ...

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: Value = 0
    ) -> None:
        """Deliver an event to the node of another peer. `purpose`: "control" or "bulk"."""
        ...

    def sync_s(self, disk: SimulatedDisk) -> float:
        """Seconds that a write takes."""
        ...

    # The run --------------------------------------------------------------------------------

    def lost_state(self) -> None:
        """Called when a peer that held a state has gone."""
        ...

    def stopped(self, node: NodeT, stop: c.Stop) -> None:
        """Called when a peer has stopped by itself."""
        ...

    def record(self, node: NodeT, event: v.Event, value: Value, out: Sequence[c.Command]) -> None:
        """Log an event and its commands."""
        ...


class HistoryObserver(Protocol[ActorT_contra]):
    """Sees the log of a run, and the states and contributions that belong to it. A call changes
    neither the run nor its random source."""

    def entry_applied(self, peer: PeerId, lineage: int, index: int, entry: e.Entry) -> None:
        """A peer applies an entry of the log."""
        ...

    def state(self, peer: PeerId, lineage: int, fragment: int, round_: int, digest: str) -> None:
        """A peer reached the state after a round, with this digest."""
        ...

    def is_corrupt(self, lineage: int, fragment: int, round_: int, digest: str) -> bool:
        """True if this is not the digest of the true state. A node that adopts such a state counts
        as corrupt too."""
        ...

    def encoded(self, manifest: str, made: ToyContribution) -> None:
        """A peer encoded a contribution of its ranks."""
        ...

    def samples_of(
        self, node: ActorT_contra, manifest: str, round_: int, samples: Sequence[int]
    ) -> None:
        """A peer encoded a contribution; its inner steps saw these samples."""
        ...

    def means(self, peer: PeerId, stamp: Stamp, means: set[int]) -> None:
        """A peer makes the outer step of a round from these means of its parts."""
        ...

    def skipped(self, node: ActorT_contra, stamp: Stamp) -> None:
        """A peer keeps its state in a committed round."""
        ...

    def dropped(self, peer: PeerId, fragment: int, steps: tuple[int, int], lineage: int) -> None:
        """Ranks go on from the outer state, without their inner steps [first, last)."""
        ...

    def kept(self, peer: PeerId, *, base_round: int, round_: int) -> None:
        """Ranks go on from the state after `round_` with work from the state after `base_round`."""
        ...


class Observer(Protocol[NodeT]):
    """Sees all nodes of one world. A call changes neither the run nor its random source."""

    @property
    def history(self) -> HistoryObserver[NodeT]:
        """Sees the log, the states and the contributions."""
        ...

    # Called by the world --------------------------------------------------------------------

    def woke(self, node: NodeT) -> None:
        """An incarnation of a peer begins, with the content of its disk."""
        ...

    def sent(self, node: NodeT, to: PeerId, message: Control) -> None:
        """A peer sends a message."""
        ...

    def true_state_lost(self) -> None:
        """A peer that held a state has gone while another state is corrupt: perhaps no peer knows
        the true state now."""
        ...

    def healed(self, world: WorldView[NodeT]) -> None:
        """No fault happens from now on."""
        ...

    def found(self, text: str) -> None:
        """The world itself has found a violation."""
        ...

    # Called by nodes ------------------------------------------------------------------------

    def handled(self, node: NodeT, event: v.Event, commands: Sequence[c.Command]) -> None:
        """A core handled an event; its commands are not carried out yet."""
        ...

    def survives(self, node: NodeT, index: int, entry: e.Entry) -> None:
        """A peer is about to apply an entry, which must survive any crash."""
        ...

    def memory(self, node: NodeT) -> None:
        """A peer applied a round; its collections have their usual sizes now."""
        ...

    def note(self, kind: str, text: str) -> None:
        """A core issued a note for the user."""
        ...

    def falsified(self, node: NodeT, stamp: Stamp | None) -> None:
        """A peer falsifies a whole result of this attempt; None: its own contribution, for peers
        that check it."""
        ...

    def lies(self, joiner: PeerId, cell: v.CellReceived) -> None:
        """A donor is about to send a cell that differs from the cut."""
        ...
