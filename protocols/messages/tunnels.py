"""What two peers that cannot reach each other say to a third one, to speak through it."""

from protocols.types.frozen import record
from protocols.types.ids import PeerId


@record
class WantTunnel:
    """Join a connection of mine with one of this peer's. Answer: TunnelTicket or NoTunnel."""

    peer: PeerId
    number: int
    """Of the question, from 1 on: the answer has it too."""


@record
class TunnelTicket:
    """Open a connection to me and show this: at its other end is that peer."""

    peer: PeerId
    number: int
    """0: that peer asked for it."""
    ticket: bytes


@record
class NoTunnel:
    """Not through me, and why."""

    number: int
    why: str
