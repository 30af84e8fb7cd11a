"""Messages of two peers that cannot dial each other to a third one that carries their
connection."""

from protocols.types.frozen import record
from protocols.types.ids import PeerId


@record
class WantTunnel:
    """Asks to join a connection of the sender with one of this peer; the answer is TunnelTicket or
    NoTunnel."""

    peer: PeerId
    number: int
    """Number of the request, from 1 on; the answer repeats it."""


@record
class TunnelTicket:
    """Open a connection to the sender and show this ticket: the other end will be that peer."""

    peer: PeerId
    number: int
    """Number of the request; 0 if the other peer asked."""
    ticket: bytes


@record
class NoTunnel:
    """Answer to WantTunnel: refused, and why."""

    number: int
    why: str
