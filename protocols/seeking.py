"""Who leads, and where: found by asking whoever we are connected with.

Must NOT decide who leads: a peer says of itself that it does, in its hello.
"""

from protocols.commands import Command, Connect, Disconnect
from protocols.hellos import Identity
from protocols.ids import PeerId

RETRY_S = 1.0
"""A peer that did not know its leader either is asked again after this time."""
NEVER = float("inf")


class Seeking:
    """`leader` and `address` once they are known; they do not change any more."""

    def __init__(self, myself: Identity | None) -> None:
        """With an identity: we lead."""
        self.leader: PeerId | None = myself.peer if myself else None
        self.address = myself.address if myself else ""
        self.deadline = NEVER
        self._ignorant: dict[PeerId, str] = {}
        """Address of each peer that could not tell."""

    def connected(self, peer: PeerId, address: str, leader: str, now: float) -> list[Command]:
        """A hello says that this peer follows `leader` ("": it does not know)."""
        if self.leader is not None:
            return []
        if leader == address:
            self.leader, self.address = peer, address
            self._ignorant.clear()
            self.deadline = NEVER
        elif leader:
            return [Connect(PeerId(""), leader)]
        else:
            self._ignorant[peer] = address
            self.deadline = min(self.deadline, now + RETRY_S)
        return []

    def ask_again(self, now: float) -> list[Command]:
        """Only a new connection brings a new hello."""
        if now < self.deadline:
            return []
        commands: list[Command] = []
        for peer, address in self._ignorant.items():
            commands += [
                Disconnect(peer, "it did not know the leader"),
                Connect(PeerId(""), address),
            ]
        self._ignorant.clear()
        self.deadline = NEVER
        return commands
