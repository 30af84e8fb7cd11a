"""The connections of this peer as the core sees them: connected peers, their incarnations, and the
peers that are dialled.

Must NOT decide what a loss means (peer/core.py), nor carry anything.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from protocols.interface.commands import Command, Connect, Disconnect, Observation, Send
from protocols.interface.events import PeerConnected, PeerDisconnected
from protocols.links.failure_detector import FailureDetector, LostPeer
from protocols.links.leader_discovery import LeaderDiscovery
from protocols.links.tunnel_choice import relays
from protocols.messages.peer import Heartbeat
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.limits import PEERS_MAX
from protocols.types.rules import ProtocolConfig


@dataclass(slots=True)
class Connection:
    """A peer in one incarnation, from its first connection until it is lost or out of the run. The
    record is dropped as a whole."""

    incarnation: int
    """Incarnation in the hello of the present connection, or of the last one. All messages by that
    connection are of this incarnation."""
    address: str
    """HOST:PORT where it listens, from its hello; "" if it does not listen."""
    leaving: bool = False
    """It has left the run, and closes the connection once it has read that."""


class Connections:
    """Opens and closes connections: each method returns the commands for it."""

    def __init__(self, contact: str = "", *, mine: str = "") -> None:
        """`contact`: address of a peer of the run that a person gave; "" if none. `mine`: our own
        address, which the log may still have for an earlier peer of this node; "" if no peer can
        dial us."""
        self.failure_detector = FailureDetector(ProtocolConfig())
        self.up = self.failure_detector.up
        """Connected peers; the same set object for ever."""
        self.mine = mine
        self.discovery = LeaderDiscovery(contact)
        self._mend_at = NEVER
        """When to dial missing peers; NEVER if none is missing."""
        self._long_at = NEVER
        """When the next missing peer has been missing for an election timeout."""
        self._missed: dict[PeerId, float] = {}
        """Peers of the run without a connection, and since when, as of the last check."""
        self.barred: dict[PeerId, str] = {}
        """Peers that reported our certificate as revoked, with their reasons."""
        self.peers: dict[PeerId, Connection] = {}
        """All peers of `up`, and those that may still reconnect."""
        self.ended: tuple[PeerId, str] | None = None
        """The peer of the connection that ended last, and why: a joiner may wait for it."""
        self._dialled: dict[PeerId, Connect] = {}
        """Peers of the run that we dialled, with the command that did."""

    def life(self, peer: PeerId, otherwise: int) -> int:
        """The incarnation of a connected peer, or of one that may reconnect; `otherwise` for any
        other peer."""
        known = self.peers.get(peer)
        return known.incarnation if known is not None else otherwise

    @property
    def deadline(self) -> float:
        missed = min(self._mend_at, self._long_at)
        return min(missed, self.failure_detector.deadline(), self.discovery.deadline)

    def dial(self, peer: PeerId, address: str) -> Connect:
        return self._dial(Connect(peer, address))

    def _dial(self, connect: Connect) -> Connect:
        self._dialled[connect.peer] = connect
        return connect

    def mend(self, me: PeerId, receivers: Mapping[PeerId, PeerInfo]) -> list[Command]:
        """All peers are connected with each other: dial the missing ones that are not dialled yet.

        The side that dialled before may have given up: it read that the peer was lost, or
        restarted.
        """
        commands: list[Command] = []
        missed = [p for p in receivers if p != me and p not in self.up] if me in receivers else []
        for peer in missed:
            connect = self._way_to(me, peer, receivers)
            if connect is not None and self._dialled.get(peer) != connect:
                commands.append(self._dial(connect))
        return commands

    def _way_to(
        self, me: PeerId, peer: PeerId, receivers: Mapping[PeerId, PeerInfo]
    ) -> Connect | None:
        """The command to dial a peer; None if we cannot dial it, or it dials us."""
        address = receivers[peer].address
        if address:
            return Connect(peer, address) if address != self.mine else None
        if self.mine or me > peer:
            return None  # Of two peers that cannot be dialled one asks for a tunnel.
        listening = (p for p in self.up if p in receivers and receivers[p].address)
        via = relays(me, peer, listening)
        return Connect(peer, "", via) if via else None

    def connected(self, event: PeerConnected, now: float) -> None:
        self.failure_detector.connected(event.peer, now)
        self.barred.pop(event.peer, None)  # It accepts our certificate after all.
        self.peers[event.peer] = Connection(event.incarnation, event.address)

    def close(self, peer: PeerId, why: str, now: float) -> Disconnect:
        """Close a connection; if the peer does not reconnect, it is lost."""
        self.ended = peer, why
        self._dialled.pop(peer, None)
        self.failure_detector.disconnected(peer, why, now)
        return Disconnect(peer, why)

    def gone(self, peer: PeerId, why: str) -> Disconnect:
        """The peer is out of the run."""
        self._dialled.pop(peer, None)
        self.peers.pop(peer, None)
        self.failure_detector.gone(peer)
        return Disconnect(peer, why)

    def renew(self, loss: LostPeer) -> list[Command]:
        """The peer is lost. Close its connection, which may hang for ever, and dial again if we
        dialled before."""
        self.peers.pop(loss.peer, None)
        if not loss.silent:
            return []
        connect = self._dialled.pop(loss.peer, None)
        commands: list[Command] = [Disconnect(loss.peer, loss.why)]
        if connect is not None:
            commands.append(self._dial(connect))
        return commands

    def left(self, peer: PeerId) -> None:
        """The peer has left the run: it closes the connection itself when it has read that."""
        self.peers[peer].leaving = True

    def disconnected(self, event: PeerDisconnected, now: float) -> list[Command]:
        peer, why = event.peer, event.why
        self.failure_detector.disconnected(peer, why, now, lives=event.lives)
        self.ended = peer, why
        known = self.peers.get(peer)
        return [self.gone(peer, "left")] if known is not None and known.leaving else []

    def keep_up(
        self,
        now: float,
        me: PeerId,
        receivers: Mapping[PeerId, PeerInfo],
        named: Callable[[], Set[str]],
        *,
        found: bool,
    ) -> list[Command]:
        """Dial missing peers. While no leader is `found`, ask for it, also at the `named`
        addresses."""
        commands: list[Command] = []
        missed = receivers.keys() - self.up - {me}
        if missed or self._mend_at < NEVER:
            self._missed = {peer: self._missed.get(peer, now) for peer in missed}
            commands += self._mend_now_and_then(now, me, receivers)
        up = {} if found else self._where()
        return commands + self.discovery.look(now, up, named, found=found)

    def _mend_now_and_then(
        self, now: float, me: PeerId, receivers: Mapping[PeerId, PeerInfo]
    ) -> list[Command]:
        """Dial missing peers at each heartbeat interval. They have one interval to reconnect by
        themselves."""
        rules, commands = self.failure_detector.rules, list[Command]()
        longs = (lost + rules.election_timeout_s for lost in self._missed.values())
        self._long_at = min((at for at in longs if now < at), default=NEVER)
        if not self._missed:
            self._mend_at = NEVER
        elif self._mend_at == NEVER:
            self._mend_at = now + rules.heartbeat_interval_s
        elif now >= self._mend_at:
            self._mend_at = now + rules.heartbeat_interval_s
            commands = self.mend(me, receivers)
        return commands

    def barred_by(self, peer: PeerId, why: str) -> list[Command]:
        """A peer reports our certificate as revoked. One report alone proves nothing: note it."""
        if peer in self.barred or len(self.barred) >= PEERS_MAX:
            return []
        self.barred[peer] = why
        return [Observation("revoked", f"{peer} reports: {why}")]

    def missed(self, now: float) -> set[PeerId]:
        """Peers without a connection for so long that they do not reconnect by themselves: peers
        that are gone have been removed by the leader by now."""
        rules = self.failure_detector.rules
        long_s = rules.election_timeout_s
        return {peer for peer, lost in self._missed.items() if now >= lost + long_s} - self.up

    def led_to(self, address: str, mine: str, index: int) -> list[Command]:
        """A peer reports the leader's address; `mine` is our own."""
        if address and address == mine:
            return []  # The peer does not know yet that we do not lead any more.
        return self.discovery.told(address, self._where(), index)

    def _where(self) -> dict[PeerId, str]:
        """Addresses of connected peers; a peer that does not listen has its id as address."""
        return {peer: x.address or peer for peer, x in self.peers.items() if peer in self.up}

    def due_heartbeats(self, now: float) -> list[Send]:
        """Heartbeats to watched peers that are due."""
        beat = Heartbeat()
        return [Send(peer, beat) for peer in self.failure_detector.due_heartbeats(now)]
