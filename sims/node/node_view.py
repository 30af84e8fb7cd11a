"""A node as its parts see it: the ranks, the sums, the transfers, the writes and the loop.

Must NOT name a value that only the world or a checker uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Control
from protocols.participant import MemberStatus
from protocols.peer import PeerCore
from protocols.raft import Raft
from protocols.state import RunState
from protocols.types import PeerId, Stamp
from sims.node.storage import SimulatedDisk, Store
from sims.node.toy_model import Value
from sims.node.world_view import Observer, WorldSettings, WorldView


class TurnsView(Protocol):
    """The order of a node's jobs."""

    paused_until: float
    """Virtual time in seconds."""

    def in_turn(self, action: Callable[[], None]) -> None:
        """Run an action in the order of the jobs, after those begun before; it takes no time."""
        ...


class LiesView(Protocol):
    """What a node falsifies as an owner of parts."""

    false_blocks: dict[tuple[Stamp, int], frozenset[int]]
    """By result of this owner, the falsified blocks."""

    def falsified(self, command: c.ReducePart, mean: Value) -> Value:
        """The result that this owner sends."""
        ...


class DataPlaneView(Protocol):
    """A node's payloads."""

    @property
    def store(self) -> Store: ...

    @property
    def owner_checks(self) -> LiesView: ...


@dataclass(slots=True)
class SimulatedProcess:
    """The process of one incarnation, until its end."""

    speed: float
    """Seconds for one inner step."""
    asked_to_leave: bool = False
    alive: bool = True
    """False: it was killed."""
    outcome: str = ""
    """How it ended by itself, as in the Stop of its core; "": it did not."""
    why: str = ""
    """The reason of that."""


@dataclass(slots=True)
class Contacts:
    """The other peers, as one incarnation's shell knows them."""

    dials: set[str] = field(default_factory=set[str])
    """Addresses to which this peer wants a connection."""
    dialling: set[str] = field(default_factory=set[str])
    """Addresses that are being dialled at present."""
    met: set[PeerId] = field(default_factory=set[PeerId])
    """Peers that were ever connected with this one."""


class NodeView(Protocol):
    """One incarnation of one peer."""

    @property
    def world(self) -> WorldView[Any]: ...

    @property
    def peer(self) -> PeerId: ...

    @property
    def core(self) -> PeerCore: ...

    @property
    def me(self) -> Identity: ...

    @property
    def raft(self) -> Raft: ...

    @property
    def run_state(self) -> RunState: ...

    @property
    def member_status(self) -> MemberStatus: ...

    @property
    def settings(self) -> WorldSettings: ...

    @property
    def observer(self) -> Observer[Any]: ...

    @property
    def now(self) -> float:
        """Virtual time in seconds."""
        ...

    @property
    def disk(self) -> SimulatedDisk: ...

    @property
    def turns(self) -> TurnsView: ...

    @property
    def process(self) -> SimulatedProcess: ...

    @property
    def data_plane(self) -> DataPlaneView: ...

    @property
    def running(self) -> bool: ...

    def send(self, to: PeerId, message: Control) -> None: ...

    def give(self, event: v.Event, value: Value = 0) -> None:
        """Queue an event for the core."""
        ...

    def handle_event(self, event: v.Event, value: Value) -> None:
        """Let the core handle an event, and carry out all its commands."""
        ...

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run an action in so many seconds, unless this incarnation has ended by then."""
        ...

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """As `after`, at exactly this time."""
        ...

    def job(self, work: Callable[[], None]) -> None:
        """Run jobs one at a time, in the order of the commands."""
        ...

    def send_bulk(self, to: PeerId, event: v.Event, value: Value) -> None: ...

    def state_at(self, fragment: int, round_: int) -> Value | None:
        """The state after this round; None if our state is another one."""
        ...

    def adopt(self, fragment: int, round_: int, value: Value) -> None:
        """Make a state that came from other peers our own."""
        ...
