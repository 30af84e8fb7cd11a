"""When a peer that hears of no leader stands for election.

Must NOT know roles or votes.
"""

from dataclasses import dataclass

from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, digest_text


@dataclass(slots=True)
class ElectionTimer:
    """Peers draw different times, and each another one every time: a hash, no random source."""

    me: PeerId
    deadline: float = NEVER
    _armed: int = 0

    def arm(self, now: float, term: int, *, least: float, spread: float) -> None:
        """Go off between `least` and `least + spread` seconds from now."""
        self._armed += 1
        chance = int(digest_text(f"{self.me} {term} {self._armed}")[:8], 16) / 2**32
        self.deadline = now + least + spread * chance
