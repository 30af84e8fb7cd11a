"""When a peer that hears from no leader begins an election.

Must NOT know roles or votes.
"""

from dataclasses import dataclass

from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, digest_text


@dataclass(slots=True)
class ElectionTimer:
    """A timer with a different time for each peer and term, made of a hash and not of a random
    source."""

    me: PeerId
    deadline: float = NEVER
    _armed: int = 0

    def arm(self, now: float, term: int, *, least: float, spread: float) -> None:
        """Set the timer to between `least` and `least + spread` seconds from now."""
        self._armed += 1
        chance = int(digest_text(f"{self.me} {term} {self._armed}")[:8], 16) / 2**32
        self.deadline = now + least + spread * chance
