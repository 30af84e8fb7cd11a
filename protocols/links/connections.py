"""Our connections as the core sees them: who is there, in which life, whom we dial.

Must NOT decide what a loss means (peer/core.py), nor carry anything.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from protocols.interface.commands import Command, Connect, Disconnect, Note, Send
from protocols.interface.events import PeerConnected
from protocols.links.failure_detector import Liveness, Loss
from protocols.links.leader_discovery import Seeking
from protocols.links.tunnel_choice import relays
from protocols.messages.peer import Heartbeat
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.limits import PEERS_MAX
from protocols.types.rules import ProtocolConfig


@dataclass(slots=True)
class Connection:
    """One life of a peer, from its first connection in that life until it is lost or out of the
    run: then all of this is dropped together."""

    incarnation: int
    """Which life: the hello of the present connection says so, or of the last one. Whatever comes
    by that connection is of this life."""
    address: str
    """HOST:PORT where it listens, as the hello says; "" nowhere."""
    leaving: bool = False
    """It is out of the run, as it wanted, and hangs up as soon as it has read that."""


class Links:
    """Answers with the commands that keep them as they should be."""

    def __init__(self, contact: str = "", *, mine: str = "") -> None:
        """`contact`: where a person said that somebody of the run listens; "" nowhere. `mine`:
        where we do, as an earlier peer of this node may have, whom the log still names; "" if
        nobody can dial us."""
        self.liveness = Liveness(ProtocolConfig())
        self.up = self.liveness.up
        """Who is connected: one set, which changes."""
        self.mine = mine
        self.seeking = Seeking(contact)
        self._mend_at = NEVER
        """When we dial whom we miss; NEVER while we miss nobody."""
        self._long_at = NEVER
        """When the next one of them is missed for long."""
        self._missed: dict[PeerId, float] = {}
        """Whom of the run we are not connected with, and since when, as of the last look."""
        self.barred: dict[PeerId, str] = {}
        """Who told us that our certificate was revoked, and how."""
        self.peers: dict[PeerId, Connection] = {}
        """All of `up`, and those that may still come back."""
        self.ended: tuple[PeerId, str] | None = None
        """With which peer a connection ended last, and why: what a joiner may be waiting for."""
        self._dialled: dict[PeerId, Connect] = {}
        """How we dialled peers of the run, and not they us."""

    def life(self, peer: PeerId, otherwise: int) -> int:
        """The incarnation in which it is connected, or may come back; `otherwise` of any other."""
        known = self.peers.get(peer)
        return known.incarnation if known is not None else otherwise

    @property
    def deadline(self) -> float:
        missed = min(self._mend_at, self._long_at)
        return min(missed, self.liveness.deadline(), self.seeking.deadline)

    def dial(self, peer: PeerId, address: str) -> Connect:
        return self._dial(Connect(peer, address))

    def _dial(self, connect: Connect) -> Connect:
        self._dialled[connect.peer] = connect
        return connect

    def mend(self, me: PeerId, receivers: Mapping[PeerId, PeerInfo]) -> list[Command]:
        """Everybody is connected with everybody: dial whom we miss and do not dial yet.

        Whoever dialled before may have given up: it read that the peer was lost, or restarted.
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
        """None: we cannot dial it, or it is we who are dialled."""
        address = receivers[peer].address
        if address:
            return Connect(peer, address) if address != self.mine else None
        if self.mine or me > peer:
            return None  # One of two that nobody can dial asks for a tunnel.
        listening = (p for p in self.up if p in receivers and receivers[p].address)
        via = relays(me, peer, listening)
        return Connect(peer, "", via) if via else None

    def connected(self, event: PeerConnected, now: float) -> None:
        self.liveness.connected(event.peer, now)
        self.barred.pop(event.peer, None)  # It speaks with us after all.
        self.peers[event.peer] = Connection(event.incarnation, event.address)

    def close(self, peer: PeerId, why: str, now: float) -> Disconnect:
        """End a connection; if the peer does not come back, it is lost."""
        self.ended = peer, why
        self._dialled.pop(peer, None)
        self.liveness.disconnected(peer, why, now)
        return Disconnect(peer, why)

    def gone(self, peer: PeerId, why: str) -> Disconnect:
        """The peer is out of the run."""
        self._dialled.pop(peer, None)
        self.peers.pop(peer, None)
        self.liveness.gone(peer)
        return Disconnect(peer, why)

    def renew(self, loss: Loss) -> list[Command]:
        """The peer is lost. A connection that may hang for ever: close it, and dial again if we
        dialled."""
        self.peers.pop(loss.peer, None)
        if not loss.silent:
            return []
        connect = self._dialled.pop(loss.peer, None)
        commands: list[Command] = [Disconnect(loss.peer, loss.why)]
        if connect is not None:
            commands.append(self._dial(connect))
        return commands

    def left(self, peer: PeerId) -> None:
        """The peer is out of the run, as it wanted: it hangs up itself when it has read that."""
        self.peers[peer].leaving = True

    def disconnected(self, peer: PeerId, why: str, now: float) -> list[Command]:
        self.liveness.disconnected(peer, why, now)
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
        """Dial whom we miss; while no leader is `found`, ask for it, at `named` addresses too."""
        commands: list[Command] = []
        missed = receivers.keys() - self.up - {me}
        if missed or self._mend_at < NEVER:
            self._missed = {peer: self._missed.get(peer, now) for peer in missed}
            commands += self._mend_now_and_then(now, me, receivers)
        up = {} if found else self._where()
        return commands + self.seeking.look(now, up, named, found=found)

    def _mend_now_and_then(
        self, now: float, me: PeerId, receivers: Mapping[PeerId, PeerInfo]
    ) -> list[Command]:
        """While we miss anybody: at each heartbeat interval. It may come back by itself first."""
        rules, commands = self.liveness.rules, list[Command]()
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
        """A peer says that our certificate was revoked. One alone may say anything."""
        if peer in self.barred or len(self.barred) >= PEERS_MAX:
            return []
        self.barred[peer] = why
        return [Note("revoked", f"{peer} says: {why}")]

    def missed(self, now: float) -> set[PeerId]:
        """Whom we are not connected with for so long that it does not come back by itself: by now
        the leader has struck whoever is gone."""
        long_s = self.liveness.rules.election_timeout_s
        return {peer for peer, lost in self._missed.items() if now >= lost + long_s} - self.up

    def led_to(self, address: str, mine: str, index: int) -> list[Command]:
        """Somebody says that the leader listens there; `mine` is where we do."""
        if address and address == mine:
            return []  # They have not heard yet that we lead no longer.
        return self.seeking.told(address, self._where(), index)

    def _where(self) -> dict[PeerId, str]:
        """Where everybody listens who is connected; who listens nowhere stands under its id."""
        return {peer: x.address or peer for peer, x in self.peers.items() if peer in self.up}

    def due_heartbeats(self, now: float) -> list[Send]:
        """To everybody whom we watch, when they are due."""
        beat = Heartbeat()
        return [Send(peer, beat) for peer in self.liveness.due_heartbeats(now)]
