"""Finds the leader by asking connected peers.

A member hears from the leader itself; a joiner, or a member without a connection to the leader,
asks other peers. Must NOT elect a leader (protocols/raft).
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeVar

from protocols.interface.commands import Command, Connect, Send
from protocols.messages.peer import FindLeader, ReadLog
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId

RETRY_S = 1.0
"""Seconds until other peers, or the same again, are asked."""
ASKED_MAX = 8
"""Peers that are asked at a time."""
Known = TypeVar("Known", bound=str)


class LeaderDiscovery:
    """The search of one peer, active while it has no connection with a leader."""

    def __init__(self, contact: str) -> None:
        """`contact`: address of a peer of the run that a person gave; "" if none."""
        self.deadline = NEVER
        self.address = ""
        """The reported address of the leader; "" if there is none."""
        self.contact = contact
        self._asked = 0
        """Position in the list of connected peers for the next question."""

    def look(
        self, now: float, up: Mapping[PeerId, str], named: Callable[[], Set[str]], *, found: bool
    ) -> list[Command]:
        """Ask if it is time. `up`: connected peers and their addresses; `named`: addresses of other
        peers of the run."""
        if found:
            self.deadline = NEVER
            return []
        if self.deadline == NEVER:
            self.deadline = now + RETRY_S  # The answer may be on its way.
        if now < self.deadline:
            return []
        self.deadline = now + RETRY_S
        # Connected peers may have no leader either: try the given address as well.
        asks: list[Command] = [Send(peer, FindLeader()) for peer in self._next(sorted(up))]
        places = {self.contact, self.address, *named()} - {"", *up.values()}
        return asks + [Connect(PeerId(""), address) for address in self._next(sorted(places))]

    def _next(self, known: Sequence[Known]) -> Sequence[Known]:
        """Some of the peers, others each time: in a large run all of them ask at once."""
        if len(known) <= ASKED_MAX:
            return known
        first = self._asked % len(known)
        self._asked = first + ASKED_MAX
        return [*known[first:], *known[:first]][:ASKED_MAX]

    def told(self, address: str, addresses: Mapping[PeerId, str], index: int) -> list[Command]:
        """A connected peer reports the leader's address, or its id if it cannot be dialled; "" if
        it does not know the leader.

        `addresses`: of connected peers; `index`: the last index of our log.
        """
        known = [other for other, theirs in addresses.items() if theirs == address]
        # Otherwise it is the id of a leader that cannot be dialled, or unknown.
        self.address = address if ":" in address else ""
        if known:
            return [Send(known[0], ReadLog(index))]
        return [Connect(PeerId(""), self.address)] if self.address else []
