"""The tunnels of a mesh: its own, and those of other peers that go through it.

Must NOT choose the peer in the middle, nor carry a tunnel of a peer that is no member of the run.
"""

import socket
from collections.abc import Callable, Mapping

from peers.connections.session import MeshOwner, Session
from peers.tunnels.client import TunnelError, Tunnels
from peers.tunnels.relay import TunnelRelay
from protocols.messages import Control, NoTunnel, TunnelTicket, WantTunnel
from protocols.types import PeerId

TUNNELLING = (WantTunnel, TunnelTicket, NoTunnel)
"""Messages that `handle_message` handles."""


class TunnelService:
    """Tunnels for a mesh. Implements RelayHost and TunnelHost."""

    def __init__(
        self,
        sessions: Mapping[PeerId, Session],
        owner: MeshOwner,
        meet: Callable[[socket.socket], None],
    ) -> None:
        """`sessions`: the mesh's own table. `meet` takes a connection that another peer
        requested."""
        self._sessions = sessions
        self._owner = owner
        self._meet = meet
        self._tunnels = Tunnels(self)
        self._tunnel_relay = TunnelRelay(self)
        self._closing = False

    def __len__(self) -> int:
        """The number of tunnels of other peers through this one, open or granted."""
        return len(self._tunnel_relay)

    async def open_tunnel(self, peer: PeerId, relay: PeerId) -> socket.socket:
        """Open a connection with a peer that cannot be dialled. Raises OSError."""
        return await self._tunnels.open_tunnel(peer, relay=relay)

    def handle_message(self, peer: PeerId, message: WantTunnel | TunnelTicket | NoTunnel) -> None:
        if self._closing:
            return
        if isinstance(message, WantTunnel):
            self._tunnel_relay.want(peer, message)
        else:
            self._tunnels.handle_message(peer, message)

    def end_came(self, connection: socket.socket, ticket: bytes) -> None:
        """A connection has shown a ticket for an end of a tunnel; this object owns it now."""
        self._tunnel_relay.came(connection, ticket)

    def disconnected(self, peer: PeerId) -> None:
        """The session with this peer has ended: close its tunnels."""
        self._tunnels.disconnected(peer)
        self._tunnel_relay.disconnected(peer)

    async def close(self) -> None:
        """End all tunnels. Idempotent."""
        self._closing = True
        self._tunnel_relay.close()
        await self._tunnels.close()

    # Other peers ----------------------------------------------------------------------------

    def send(self, peer: PeerId, message: Control) -> bool:
        return self._sessions[peer].control.send(message)

    def remote(self, peer: PeerId) -> tuple[str, int]:
        if peer not in self._sessions:
            raise TunnelError(f"{peer} is not connected")
        return self._sessions[peer].control.remote

    def may_tunnel(self, peer: PeerId) -> bool:
        return peer in self._sessions and self._owner.is_member(peer)

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None:
        self._owner.relayed(source, sink, size)

    def tunnel_came(self, connection: socket.socket) -> None:
        self._meet(connection)
