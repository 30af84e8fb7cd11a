"""The world as its nodes see it: time, lines, faults that wait, and the observer of the run.

sims/simulator has such worlds. Must NOT name a value that neither a node nor a checker of a node
uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from protocols.interface import Connect
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import Control
from protocols.peer import PeerCore
from protocols.types import PeerId, ProtocolConfig
from sims.node.observer import Observer
from sims.node.ranks import Training
from sims.node.storage import Disk
from sims.node.toy_model import Model, Value

if TYPE_CHECKING:
    from sims.node.node import Node


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


class CertificationView(Protocol):
    """Admission to the run."""

    def do(self, node: Node, command: c.AtTheGate) -> None:
        """Carry out a command of a core."""
        ...


class DialerView(Protocol):
    """The connections of all peers."""

    @property
    def certification(self) -> CertificationView: ...

    def dial(self, node: Node, connect: Connect) -> None:
        """Dial until the connection is open, or the node hangs up."""
        ...

    def hang_up(self, node: Node, other: PeerId) -> None: ...

    def gone(self, node: Node) -> None:
        """End every connection of a node after the end of its process."""
        ...


class TwinCoresView(Protocol):
    """Second cores, with which the cores of nodes are compared."""

    def born(self, core: PeerCore, disk: Disk, *, contact: str) -> None:
        """Begin an incarnation of a peer with this core and this disk."""
        ...

    def compare(self, node: Node, event: v.Event, commands: Sequence[c.Command]) -> None:
        """Compare the commands of a core with those of its twin, after the same event."""
        ...


class LimitValuesView(Protocol):
    """Limit values."""

    def event(self, event: v.Event) -> v.Event:
        """The same event, in some worlds with values at their limits."""
        ...


class WorldView(Protocol):
    """One world. Its nodes read the values, and change only the counts in `happened` and
    `traps`."""

    rules: ProtocolConfig
    random: Random
    model: Model
    training: Training
    observer: Observer
    now: float
    """Virtual time in seconds."""
    compute_s: float
    """Seconds that a job of the shell takes."""
    samples_ahead: int
    """Samples that a peer asks for in advance."""
    compact_entries: int
    """A peer's log is compacted into a snapshot when it has more entries than this."""
    state_cells: int
    """Cells of a fragment's state."""
    nodes: dict[PeerId, Node]
    """The newest incarnation of each peer."""
    disks: dict[PeerId, Disk]
    happened: Counter[str]
    """Number of faults that took place, and of their outcomes, by kind."""
    traps: dict[str, int]
    """By kind: number of faults that wait for the next state transfer."""
    spring: Callable[[str, Node, Node], None] | None
    """Called with (kind, joiner, donor) when a trap goes off."""

    @property
    def live(self) -> list[Node]: ...

    @property
    def network(self) -> NetworkView: ...

    @property
    def dialer(self) -> DialerView: ...

    @property
    def twin_cores(self) -> TwinCoresView: ...

    @property
    def limit_values(self) -> LimitValuesView: ...

    # Time -----------------------------------------------------------------------------------

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        """Run an action in so many seconds."""
        ...

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """As `at`, at exactly this time."""
        ...

    def wake(self, node: Node, due: float) -> None:
        """Set the time at which the node is woken; it replaces the earlier one."""
        ...

    # Messages, payloads and disks -----------------------------------------------------------

    def sent(self, node: Node, to: PeerId, message: Control) -> None:
        """Called for each message that a peer is about to send."""
        ...

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: Value = 0
    ) -> None:
        """Deliver an event to the node of another peer. `purpose`: "control" or "bulk"."""
        ...

    def sync_s(self, disk: Disk) -> float:
        """Seconds that a write takes."""
        ...

    def transfer_s(self) -> float:
        """Seconds that the cells of a fragment take."""
        ...

    # The run --------------------------------------------------------------------------------

    def begun(self, node: Node) -> None:
        """Called when a peer reads the first entry."""
        ...

    def lost_state(self) -> None:
        """Called when a peer that held a state has gone."""
        ...

    def stopped(self, node: Node, stop: c.Stop) -> None:
        """Called when a peer has stopped by itself."""
        ...

    def digest_of(self, round_: int, outer: Value) -> str:
        """Digest of the state after this round, as the run's shells compute it."""
        ...

    def steps_of(self, peer: PeerId) -> int:
        """Number of inner steps that a peer has made in all its incarnations."""
        ...

    def count_step(self, peer: PeerId, number: int) -> None: ...

    # Records --------------------------------------------------------------------------------

    def record(self, node: Node, event: v.Event, value: Value, out: Sequence[c.Command]) -> None:
        """Log an event and its commands."""
        ...

    def tell(self, text: str) -> None:
        """Add a line to the story of the run."""
        ...
