"""The world as connections and admission see it: nodes, time, lines and addresses.

Must NOT name a value that neither of the two uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from protocols.interface import events as v
from protocols.types import PeerId
from sims.node.node import Node
from sims.node.toy_model import Value
from sims.simulator.network import Network


class DialledWorld(Protocol):
    """One world, in which peers dial each other and ask for admission."""

    nodes: dict[PeerId, Node]
    """The newest incarnation of each peer."""
    network: Network
    now: float
    """Virtual time in seconds."""
    happened: Counter[str]
    """Number of faults that took place, and of their outcomes, by kind."""

    @property
    def live(self) -> list[Node]: ...

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        """Run an action in so many seconds."""
        ...

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: Value = 0
    ) -> None:
        """Deliver an event to the node of another peer."""
        ...

    def who_listens(self, address: str) -> Node:
        """The newest incarnation of the peer with this address."""
        ...

    def gave_up(self) -> None:
        """Called when a peer without a run has got no answer."""
        ...

    def tell(self, text: str) -> None:
        """Add a line to the story of the run."""
        ...
