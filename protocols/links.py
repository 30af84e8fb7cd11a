"""Our connections as the core sees them: who is there, whom we dial, who leads.

Must NOT decide what a loss means (core.py), nor carry anything.
"""

from protocols.commands import Command, Connect, Disconnect, Send
from protocols.config import ProtocolConfig
from protocols.events import PeerConnected
from protocols.hellos import Identity
from protocols.ids import PeerId
from protocols.liveness import Liveness, Loss
from protocols.messages import Heartbeat
from protocols.seeking import Seeking


class Links:
    """Answers with the commands that keep them as they should be."""

    def __init__(self, me: Identity, *, leads: bool) -> None:
        self.liveness = Liveness(ProtocolConfig(), patient=not leads)
        self.seeking = Seeking(me if leads else None)
        self._dialled: dict[PeerId, str] = {}
        """Addresses of peers that we dialled, and not they us."""

    @property
    def up(self) -> set[PeerId]:
        return self.liveness.up

    @property
    def leader_is_up(self) -> bool:
        return self.seeking.leader in self.liveness.up

    @property
    def deadline(self) -> float:
        return min(self.liveness.deadline(), self.seeking.deadline)

    def dial(self, peer: PeerId, address: str) -> Connect:
        self._dialled[peer] = address
        return Connect(peer, address)

    def connected(self, event: PeerConnected, now: float) -> list[Command]:
        self.liveness.connected(event.peer, now)
        return self.seeking.connected(event.peer, event.address, event.leader, now)

    def close(self, peer: PeerId, why: str, now: float) -> Disconnect:
        """End a connection; if the peer does not come back, it is lost."""
        self._dialled.pop(peer, None)
        self.liveness.disconnected(peer, why, now)
        return Disconnect(peer, why)

    def gone(self, peer: PeerId, why: str) -> Disconnect:
        """The peer is out of the run."""
        self._dialled.pop(peer, None)
        self.liveness.gone(peer)
        return Disconnect(peer, why)

    def renew(self, loss: Loss) -> list[Command]:
        """A connection that may hang for ever: close it, and dial again if we dialled."""
        if not loss.silent:
            return []
        address = self._dialled.pop(loss.peer, None)
        commands: list[Command] = [Disconnect(loss.peer, loss.why)]
        if address is not None:
            commands.append(self.dial(loss.peer, address))
        return commands

    def keep_up(self, now: float, last_index: int) -> list[Command]:
        """Heartbeats that are due; and a search for the leader that found nobody yet."""
        beats = [Send(p, Heartbeat(last_index)) for p in self.liveness.due_heartbeats(now)]
        return [*beats, *self.seeking.ask_again(now)]
