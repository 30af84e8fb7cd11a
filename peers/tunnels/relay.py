"""The peer in the middle of a tunnel: it joins a connection of each of two peers (splice.py) once
both have shown their tickets.

Only members may ask for a tunnel, and only to members; their number is bounded. Must NOT choose
which peers use this one: they do.
"""

import asyncio
import secrets
import socket
from dataclasses import dataclass, field
from typing import Protocol

from peers.tunnels.splice import BUFFER_BYTES, BytePump
from protocols.messages import Control, NoTunnel, TunnelTicket, WantTunnel
from protocols.types import TICKET_BYTES, PeerId

TUNNELS_MAX = 256
"""Tunnels of all peers together."""
TUNNELS_PER_PEER_MAX = 64
"""Tunnels of one peer: a control connection and some bulk connections with each other peer."""
WAIT_S = 5.0
"""Seconds within which both ends must show their tickets."""
assert TUNNELS_MAX * 2 * BUFFER_BYTES <= 128 << 20


class RelayHost(Protocol):
    """What a junction needs from the mesh. No method may raise or block."""

    def send(self, peer: PeerId, message: Control) -> bool: ...

    def may_tunnel(self, peer: PeerId) -> bool:
        """Is the peer connected and a member of the run?"""
        ...

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None: ...


@dataclass(slots=True, eq=False)
class _Joint:
    """A granted tunnel; `splice` is set once both ends are here."""

    peers: tuple[PeerId, PeerId]
    """(the requesting peer, the peer at the other end)."""
    tickets: tuple[bytes, bytes]
    ends: dict[int, socket.socket] = field(default_factory=dict[int, socket.socket])
    timer: asyncio.TimerHandle | None = None
    splice: BytePump | None = None


class TunnelRelay:
    """All tunnels through this peer: `want`, `came` and `disconnected`, then `close`."""

    def __init__(self, host: RelayHost) -> None:
        self._host = host
        self._joints: set[_Joint] = set()
        self._tickets: dict[bytes, tuple[_Joint, int]] = {}
        """By ticket that was not shown yet: its tunnel and its end (0 or 1)."""

    def __len__(self) -> int:
        return len(self._joints)

    def want(self, asker: PeerId, wanted: WantTunnel) -> None:
        """A peer asks for a tunnel: send it a ticket, or the reason why not."""
        why = self._refusal(asker, wanted.peer)
        if why:
            self._host.send(asker, NoTunnel(wanted.number, why))
            return
        tickets = secrets.token_bytes(TICKET_BYTES), secrets.token_bytes(TICKET_BYTES)
        joint = _Joint((asker, wanted.peer), tickets)
        self._joints.add(joint)
        for end, ticket in enumerate(tickets):
            self._tickets[ticket] = joint, end
        loop = asyncio.get_running_loop()
        joint.timer = loop.call_later(WAIT_S, self._end_tunnel, joint)
        self._host.send(asker, TunnelTicket(wanted.peer, wanted.number, tickets[0]))
        self._host.send(wanted.peer, TunnelTicket(asker, 0, tickets[1]))

    def came(self, connection: socket.socket, ticket: bytes) -> None:
        """A connection has shown a ticket; this object owns it now."""
        joint, end = self._tickets.pop(ticket, (None, 0))
        if joint is None:
            connection.close()
            return
        joint.ends[end] = connection
        if len(joint.ends) < len(joint.peers):
            return  # Nothing is read before the other end is here: its bytes wait in the kernel.
        if joint.timer is not None:
            joint.timer.cancel()
        one, other = joint.peers

        def moved(forth: bool, count: int) -> None:
            self._host.relayed(*((one, other) if forth else (other, one)), count)

        ends = joint.ends[0], joint.ends[1]
        joint.splice = BytePump(*ends, moved=moved, ended=lambda _: self._forget(joint))
        joint.splice.start()

    def disconnected(self, peer: PeerId) -> None:
        """The peer is disconnected: close all of its tunnels."""
        for joint in [each for each in self._joints if peer in each.peers]:
            self._end_tunnel(joint)

    def close(self) -> None:
        for joint in list(self._joints):
            self._end_tunnel(joint)

    def _refusal(self, asker: PeerId, to: PeerId) -> str:
        """Why there can be no tunnel between these peers; "" if there can."""
        if not self._host.may_tunnel(asker) or asker == to:
            return "only members of the run get a tunnel, and only to other members"
        if not self._host.may_tunnel(to):
            return f"{to} is not connected here"
        if len(self._joints) >= TUNNELS_MAX:
            return f"there are {TUNNELS_MAX} tunnels already"
        if sum(each.peers[0] == asker for each in self._joints) >= TUNNELS_PER_PEER_MAX:
            return f"{asker} has {TUNNELS_PER_PEER_MAX} tunnels already"
        return ""

    def _end_tunnel(self, joint: _Joint) -> None:
        if joint.splice is not None:
            joint.splice.close()  # `_forget` follows.
            return
        for connection in joint.ends.values():
            connection.close()
        self._forget(joint)

    def _forget(self, joint: _Joint) -> None:
        self._joints.discard(joint)
        for ticket in joint.tickets:
            self._tickets.pop(ticket, None)
        if joint.timer is not None:
            joint.timer.cancel()
