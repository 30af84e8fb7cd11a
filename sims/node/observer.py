"""The calls with which nodes and their world report each action to an observer.

In a simulated run the observer is a set of checkers (sims/checkers). Must NOT know what an observer
does with a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import Control
from protocols.messages import log_entries as e
from protocols.types import PeerId, Stamp

if TYPE_CHECKING:
    from sims.node.node import Node
    from sims.node.world_view import WorldView


@dataclass(frozen=True, slots=True)
class Contribution:
    """An encoded contribution: the inner steps [first, last) of its peer, numbered through all
    incarnations, which add up to `delta`."""

    peer: PeerId
    fragment: int
    delta: int
    first: int
    last: int
    expected: int
    """The sum of these steps, added up one by one."""
    sent: int
    """The value that other peers received: the delta, or in a gossip run the parameter."""
    base_round: int = 0
    """The round of the outer state to which the ranks' parameters were last moved."""


class Observer(Protocol):
    """Sees all nodes of one world. A call changes neither the run nor its random source."""

    # Called by the world --------------------------------------------------------------------

    def woke(self, node: Node) -> None:
        """An incarnation of a peer begins, with the content of its disk."""
        ...

    def sent(self, node: Node, to: PeerId, message: Control) -> None:
        """A peer sends a message."""
        ...

    def true_state_lost(self) -> None:
        """A peer that held a state has gone while another state is corrupt: perhaps no peer knows
        the true state now."""
        ...

    def healed(self, world: WorldView) -> None:
        """No fault happens from now on."""
        ...

    def found(self, text: str) -> None:
        """The world itself has found a violation."""
        ...

    # Called by nodes: the core --------------------------------------------------------------

    def handled(self, node: Node, event: v.Event, commands: Sequence[c.Command]) -> None:
        """A core handled an event; its commands are not carried out yet."""
        ...

    def survives(self, node: Node, index: int, entry: e.Entry) -> None:
        """A peer is about to apply an entry, which must survive any crash."""
        ...

    def applied(self, peer: PeerId, lineage: int, index: int, entry: e.Entry) -> None:
        """A peer applies an entry of the log."""
        ...

    def memory(self, node: Node) -> None:
        """A peer applied a round; its collections have their usual sizes now."""
        ...

    def note(self, kind: str, text: str) -> None:
        """A core issued a note for the user."""
        ...

    # Called by nodes: states and contributions ----------------------------------------------

    def state(self, peer: PeerId, lineage: int, fragment: int, round_: int, digest: str) -> None:
        """A peer reached the state after a round, with this digest."""
        ...

    def is_corrupt(self, lineage: int, fragment: int, round_: int, digest: str) -> bool:
        """True if this is not the digest of the true state. A node that adopts such a state counts
        as corrupt too."""
        ...

    def encoded(self, manifest: str, made: Contribution) -> None:
        """A peer encoded a contribution of its ranks."""
        ...

    def samples_of(self, node: Node, manifest: str, round_: int, samples: Sequence[int]) -> None:
        """A peer encoded a contribution; its inner steps saw these samples."""
        ...

    def means(self, peer: PeerId, stamp: Stamp, means: set[int]) -> None:
        """A peer makes the outer step of a round from these means of its parts."""
        ...

    def skipped(self, node: Node, stamp: Stamp) -> None:
        """A peer keeps its state in a committed round."""
        ...

    def dropped(self, peer: PeerId, fragment: int, steps: tuple[int, int], lineage: int) -> None:
        """Ranks go on from the outer state, without their inner steps [first, last)."""
        ...

    def kept(self, peer: PeerId, *, base_round: int, round_: int) -> None:
        """Ranks go on from the state after `round_` with work from the state after `base_round`."""
        ...

    def falsified(self, node: Node, stamp: Stamp | None) -> None:
        """A peer falsifies a whole result of this attempt; None: its own contribution, for peers
        that check it."""
        ...

    def lies(self, joiner: PeerId, cell: v.CellReceived) -> None:
        """A donor is about to send a cell that differs from the cut."""
        ...
