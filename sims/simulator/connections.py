"""Connections of simulated peers as their shells see them: dialled until they are open, begun with
hellos, and closed with notice to both sides.

Must NOT decide which peers are connected: cores and faults do.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.interface import Connect
from protocols.interface import events as v
from protocols.links import refusal
from protocols.messages import Hello
from protocols.types import PROTOCOL_VERSION, PeerId
from sims.node.node import Node
from sims.simulator.certification import Certification
from sims.simulator.dialled_world import DialledWorld

REDIAL_S = 0.5
FIRST_DIAL_S = 5.0
"""Seconds after which a peer that has never reached the run gives up."""


class WorldDialer:
    """Dialling of all peers of one world."""

    def __init__(self, world: DialledWorld, seed: int, *, certified: bool) -> None:
        """`certified`: peers connect with certificates that the log admits."""
        self._world, self._network = world, world.network
        self.certification = Certification(world, seed, closed=certified)
        self._by_address: dict[str, PeerId] = {}
        """The peer that listened at each address last."""
        self._via: dict[tuple[PeerId, PeerId], tuple[PeerId, ...]] = {}
        """By (dialling peer, peer without an address): peers through which it can be reached."""
        self._through: dict[tuple[PeerId, PeerId], PeerId] = {}
        """By the same pair: the peer through which the two are connected."""

    def listens(self, node: Node) -> None:
        """An incarnation of a peer begins, and listens at its address."""
        self._by_address[node.me.address] = node.peer

    def _who_listens(self, address: str) -> Node | None:
        """The newest incarnation of the peer with this address; None: there is no such peer."""
        peer = self._by_address.get(address)
        return self._world.nodes[peer] if peer is not None else None

    def dial(self, node: Node, connect: Connect) -> None:
        """Dial until the connection is open, or the node hangs up."""
        if connect.via:
            self._via[node.peer, connect.peer] = connect.via
        self._dial(node, connect.address or connect.peer)

    def _dial(self, node: Node, address: str) -> None:
        """`address`: an address, or the id of a peer that has none."""
        contacts = node.contacts
        if address in contacts.dials and address in contacts.dialling:
            return
        contacts.dials.add(address)
        contacts.dialling.add(address)
        world = self._world
        self._later(node, address, world.network.delay_s * 3 + 0.01, world.clock.now + FIRST_DIAL_S)

    def hang_up(self, node: Node, other: PeerId) -> None:
        nodes = self._world.nodes
        peer = nodes.get(other)
        if peer is not None:
            node.contacts.dials.discard(_key(peer))
            self.cut_connection(node, peer, says=self._reaches(node, peer))

    def cut_connection(self, one: Node, other: Node, *, says: bool = False) -> None:
        """End the connection between two peers; the side that dialled dials again. `says`: the
        first one does it, and says so before."""
        if not self._network.disconnect(one.peer, other.peer):
            return
        self._ended(one, other)
        self._ended(other, one, lives=says)
        self._joined_no_more(one.peer, other.peer)

    def is_stranded(self, node: Node) -> bool:
        """True if a node that is no member knows only addresses of peers that the operator wanted
        to revoke: no other peer knows of it, and none of these will answer."""
        dials = [
            dialled for key in node.contacts.dials if (dialled := self._peer_at(key)) is not None
        ]
        is_member = node.peer in node.run_state.members
        return bool(dials) and not is_member and all(map(self.certification.bans, dials))

    def _peer_at(self, key: str) -> Node | None:
        """The peer with this id or address."""
        world = self._world
        return world.nodes.get(PeerId(key)) or self._who_listens(key)

    def process_ended(self, node: Node) -> None:
        """End every connection of a node after the end of its process."""
        world = self._world
        for other in list(world.nodes.values()):
            if other is not node and world.network.disconnect(node.peer, other.peer):
                self._ended(other, node)
                self._joined_no_more(node.peer, other.peer)

    def _joined_no_more(self, one: PeerId, other: PeerId) -> None:
        """End the tunnels that used the connection between these two, of which one is the relay."""
        nodes = self._world.nodes
        for pair, relay in list(self._through.items()):
            if {one, other} in ({relay, pair[0]}, {relay, pair[1]}):
                del self._through[pair]
                self.cut_connection(nodes[pair[0]], nodes[pair[1]])

    def _begun(self, node: Node, hello: Hello) -> None:
        """Tell a node of a connection, unless it has a newer one by then."""
        line = self._network.line(node.peer, hello.peer)
        connection = line.connection

        def tell() -> None:
            if line.connection == connection:
                node.give(
                    v.PeerConnected(hello.peer, hello.incarnation, hello.address, hello.leader)
                )

        _when_awake(node, tell)

    def _ended(self, node: Node, other: Node, *, lives: bool = False) -> None:
        """Tell a node that a connection has ended, unless it has a new one by then. If the node
        dialled, it dials again. `lives`: the other one said that it closes the connection."""
        line = self._network.line(node.peer, other.peer)
        connection = line.connection

        def tell() -> None:
            if not line.up or line.connection == connection:
                node.give(v.PeerDisconnected(other.peer, "end of stream", lives))

        _when_awake(node, tell)
        if _key(other) in node.contacts.dials:
            self._dial(node, _key(other))

    def _later(self, node: Node, address: str, delay_s: float, give_up: float) -> None:
        world = self._world

        def connect() -> None:
            hidden = world.nodes.get(PeerId(address))
            other = hidden or self._who_listens(address)
            if address not in node.contacts.dials or (
                other is not None and world.network.line(node.peer, other.peer).up
            ):
                node.contacts.dialling.discard(address)
                return
            relay = self._relay(node, hidden) if hidden else None
            if (
                other is not None  # Only a liar names an address without a peer.
                and self._listens(other)
                and (relay or (not hidden and self._reaches(node, other)))
            ):
                if self.certification.shuts_out(node):
                    self.certification.ask(node, other)
                    self._later(node, address, REDIAL_S, world.clock.now + FIRST_DIAL_S)
                    return
                if self.certification.are_strangers(node, other):
                    if other.peer not in node.disk.trusts:
                        self.certification.ask(node, other)
                    self._later(node, address, REDIAL_S, world.clock.now + FIRST_DIAL_S)
                    return
                if self.certification.bars(node, other, _refusal(node, other)):
                    self._later(node, address, REDIAL_S, world.clock.now + FIRST_DIAL_S)
                    return
                node.contacts.dialling.discard(address)
                if relay is not None:
                    self._through[node.peer, other.peer] = relay
                self._connect(node, other)
            elif not node.raft.run and world.clock.now > give_up:
                node.process.outcome = "alone"
                self.process_ended(node)  # Other peers without a run may be connected with it.
                world.operator.lost_peer()
            else:
                self._later(node, address, REDIAL_S, give_up)

        node.after(delay_s, connect)

    def _listens(self, other: Node) -> bool:
        return other.running and not self.certification.shuts_out(other)

    def _reaches(self, node: Node, other: Node) -> bool:
        return self._network.reachable(node.peer, other.peer, self._world.clock.now)

    def _relay(self, node: Node, other: Node) -> PeerId | None:
        """The first named relay that runs, is connected with both peers, and has both among its log
        readers; None: there is none."""
        network = self._network
        for relay in self._via.get((node.peer, other.peer), ()):
            carrier = self._world.nodes[relay]
            ends = [network.line(relay, end.peer).up for end in (node, other)]
            known = carrier.core.run_state.readers
            if carrier.running and all(ends) and node.peer in known and other.peer in known:
                return relay
        return None

    def _connect(self, node: Node, other: Node) -> None:
        """Exchange hellos; the dialled side may refuse."""
        world, hello = self._world, _hello(node)
        if why := _refusal(node, other):
            world.story.tell(f"{node.peer} is refused by {other.peer}: {why}")
            node.process.outcome, node.process.why = "refused", why
            self.process_ended(node)
            return
        back = _hello(other)
        world.network.connect(node.peer, other.peer)
        line = world.network.line(node.peer, other.peer)
        connection = line.connection
        for me, theirs in ((node, back), (other, hello)):
            if not line.up or line.connection != connection:
                return  # The first node hung up at once.
            me.contacts.met.add(theirs.peer)
            self._begun(me, theirs)


def _when_awake(node: Node, tell: Callable[[], None]) -> None:
    """Call `tell` now, or after the actions that a pause delays."""
    if node.now < node.turns.paused_until:
        node.after(0.0, tell)
    else:
        tell()


def _key(node: Node) -> str:
    """The address or id under which others dial a node."""
    return node.me.address or node.peer


def _refusal(node: Node, other: Node) -> str:
    """Why `other` refuses the hello of the dialling `node`; "": it accepts."""
    core, links = other.core, other.core.links
    life = links.life(node.peer, 0)
    return refusal(_hello(node), me=core.me, run=core.raft.run, run_state=core.run_state, life=life)


def _hello(node: Node) -> Hello:
    me, run, connectivity = node.me, node.raft.run, node.core.connectivity
    leader = connectivity.leader_address()
    return Hello(PROTOCOL_VERSION, run, me.peer, me.name, me.incarnation, me.address, leader)
