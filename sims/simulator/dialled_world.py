"""The world as connections and admission see it: as its nodes do, with lines and addresses.

Must NOT name a value that neither of the two uses.
"""

from typing import Protocol

from sims.node.node import Node
from sims.node.world_view import WorldView
from sims.simulator.virtual_network import Network


class OperatorView(Protocol):
    """The operator of the cluster."""

    def lost_peer(self) -> None:
        """Called when a peer without a run has got no answer, or a peer was removed."""
        ...


class DialledWorld(WorldView[Node], Protocol):
    """One world, in which peers dial each other and ask for admission."""

    @property
    def network(self) -> Network: ...

    @property
    def operator(self) -> OperatorView: ...
