"""Who leads, for somebody who does not hear of it: found by asking whoever is connected.

A member learns it from the leader itself; a joiner, or a member that the leader cannot reach, asks
here. Must NOT decide who leads.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeVar

from protocols.interface.commands import Command, Connect, Send
from protocols.messages.peer import ReadLog, Seek
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId

RETRY_S = 1.0
"""Others are asked, or the same again, after this time."""
ASKED_MAX = 8
"""At a time."""
Known = TypeVar("Known", bound=str)


class Seeking:
    """Only looks while there is no leader, or no connection with it."""

    def __init__(self, contact: str) -> None:
        """`contact`: where a person said that somebody of the run listens; "" nowhere."""
        self.deadline = NEVER
        self.address = ""
        """Where the leader was said to listen."""
        self.contact = contact
        self._asked = 0
        """Where to go on in the list of those who are connected."""

    def look(
        self, now: float, up: Mapping[PeerId, str], named: Callable[[], Set[str]], *, found: bool
    ) -> list[Command]:
        """Ask when it is time to. `up`: who is connected, and where they listen; `named`: where
        others of the run may listen."""
        if found:
            self.deadline = NEVER
            return []
        if self.deadline == NEVER:
            self.deadline = now + RETRY_S  # It may be on its way already.
        if now < self.deadline:
            return []
        self.deadline = now + RETRY_S
        # Whom we are connected with may be as lost as we are: try where we were told to, too.
        asks: list[Command] = [Send(peer, Seek()) for peer in self._next(sorted(up))]
        places = {self.contact, self.address, *named()} - {"", *up.values()}
        return asks + [Connect(PeerId(""), address) for address in self._next(sorted(places))]

    def _next(self, known: Sequence[Known]) -> Sequence[Known]:
        """Some of them, others each time: in a large run all seek at once."""
        if len(known) <= ASKED_MAX:
            return known
        first = self._asked % len(known)
        self._asked = first + ASKED_MAX
        return [*known[first:], *known[:first]][:ASKED_MAX]

    def told(self, address: str, addresses: Mapping[PeerId, str], index: int) -> list[Command]:
        """A connected peer says where the leader listens, or who it is if nobody can dial it.
        "": it does not know either.

        `addresses` are those of connected peers; `index` is how far our log goes.
        """
        known = [other for other, theirs in addresses.items() if theirs == address]
        # Else it is an id, of who cannot be dialled; or nobody knows.
        self.address = address if ":" in address else ""
        if known:
            return [Send(known[0], ReadLog(index))]
        return [Connect(PeerId(""), self.address)] if self.address else []
