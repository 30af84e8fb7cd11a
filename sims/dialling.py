"""Connections of simulated peers as their shells see them: dialled until they are made, begun with
hellos, and noticed by both sides when they end.

Must NOT decide who is connected with whom: cores do, and faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import events as v
from protocols.hellos import refusal
from protocols.ids import PROTOCOL_VERSION, PeerId
from protocols.messages import Hello
from sims.gates import Gates
from sims.nodes import Node

if TYPE_CHECKING:
    from sims.world import World

REDIAL_S = 0.5
FIRST_DIAL_S = 5.0
"""A peer that finds nobody at all gives up."""


class Dialling:
    """Of everybody in one world."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self.gates = Gates(world, seed)

    def dial(self, node: Node, address: str) -> None:
        """Until it works, or the node hangs up."""
        if address in node.dials and address in node.dialling:
            return
        node.dials.add(address)
        node.dialling.add(address)
        world = self._world
        self._later(node, address, world.network.delay_s * 3 + 0.01, world.now + FIRST_DIAL_S)

    def hang_up(self, node: Node, other: PeerId) -> None:
        peer = self._world.nodes.get(other)
        if peer is not None:
            node.dials.discard(peer.core.me.address)
            self.cut(node, peer)

    def cut(self, one: Node, other: Node) -> None:
        """The connection between two peers ends; whoever dialled dials again."""
        if not self._world.network.disconnect(one.peer, other.peer):
            return
        for me, them in ((one, other), (other, one)):
            self._ended(me, them)

    def gone(self, node: Node) -> None:
        """The process ended: every connection with it does."""
        world = self._world
        for other in list(world.nodes.values()):
            if other is not node and world.network.disconnect(node.peer, other.peer):
                self._ended(other, node)

    def _ended(self, node: Node, other: Node) -> None:
        """A node learns that a connection is over, unless it has a new one by then; if it dialled,
        it dials again."""
        line = self._world.network.line(node.peer, other.peer)
        connection = line.connection

        def tell() -> None:
            if not line.up or line.connection == connection:
                node.give(v.PeerDisconnected(other.peer, "end of stream"))

        if self._world.now < node.paused_until:
            node.after(0.0, tell)
        else:
            tell()
        if other.core.me.address in node.dials:
            self.dial(node, other.core.me.address)

    def _later(self, node: Node, address: str, delay_s: float, give_up: float) -> None:
        world = self._world

        def connect() -> None:
            other = world.who_listens(address)
            if address not in node.dials or world.network.line(node.peer, other.peer).up:
                node.dialling.discard(address)
                return
            listens = other.running and not self.gates.shuts_out(other)
            if listens and world.network.reachable(node.peer, other.peer, world.now):
                if self.gates.shuts_out(node):
                    self.gates.ask(node, other)
                    self._later(node, address, REDIAL_S, world.now + FIRST_DIAL_S)
                    return
                node.dialling.discard(address)
                self._connect(node, other)
            elif not node.core.raft.run and world.now > give_up:
                node.outcome = "alone"
                self.gone(node)  # It may be connected with others that found nobody either.
            else:
                self._later(node, address, REDIAL_S, give_up)

        node.after(delay_s, connect)

    def _connect(self, node: Node, other: Node) -> None:
        """Hellos are exchanged; the side that was dialled may refuse."""
        world, core, hello = self._world, other.core, _hello(node)
        why = refusal(hello, me=core.me, run=core.raft.run, members=core.members)
        if why:
            world.tell(f"{node.peer} is refused by {other.peer}: {why}")
            node.outcome, node.why = "refused", why
            self.gone(node)
            return
        back = _hello(other)
        world.network.connect(node.peer, other.peer)
        line = world.network.line(node.peer, other.peer)
        connection = line.connection
        for me, theirs in ((node, back), (other, hello)):
            if not line.up or line.connection != connection:
                return  # The first one hung up at once.
            me.give(v.PeerConnected(theirs.peer, theirs.incarnation, theirs.address, theirs.leader))


def _hello(node: Node) -> Hello:
    me, run, leader = node.core.me, node.core.raft.run, node.core.company.leader_address()
    return Hello(PROTOCOL_VERSION, run, me.peer, me.name, me.incarnation, me.address, leader)
