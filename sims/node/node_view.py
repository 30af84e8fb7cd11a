"""A node as its parts see it: the ranks, the sums, the transfers, the writes and the loop.

Must NOT name a value that only the world or a checker uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import Control
from protocols.peer import PeerCore
from protocols.state import RunState
from protocols.types import PeerId, Stamp
from sims.node.storage import SimulatedDisk, Store
from sims.node.toy_model import Value
from sims.node.world_view import Observer, WorldView


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


class NodeView(Protocol):
    """One incarnation of one peer."""

    speed: float
    """Seconds for one inner step."""

    @property
    def world(self) -> WorldView[Any]: ...

    @property
    def observer(self) -> Observer[Any]: ...

    @property
    def peer(self) -> PeerId: ...

    @property
    def me(self) -> Identity: ...

    @property
    def core(self) -> PeerCore: ...

    @property
    def run_state(self) -> RunState: ...

    @property
    def disk(self) -> SimulatedDisk: ...

    @property
    def store(self) -> Store: ...

    @property
    def turns(self) -> TurnsView: ...

    @property
    def running(self) -> bool: ...

    @property
    def owner_checks(self) -> LiesView: ...

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
