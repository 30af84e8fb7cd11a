"""When a peer that hears from no leader begins an election.

Must NOT know roles or votes.
"""

from dataclasses import dataclass

from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, digest_text
from protocols.types.rules import ProtocolConfig

TRIES_MAX = 8
"""More tries do not lengthen the time any more."""


@dataclass(slots=True)
class ElectionTimer:
    """A timer with a different time for each peer and term, made of a hash and not of a random
    source."""

    me: PeerId
    deadline: float = NEVER
    pause_s: float = NEVER
    """The longest pause of the present leader lately, seconds; NEVER: not known."""
    tries: int = 0
    """Times that this peer has stood for election since a leader was heard."""
    _armed: int = 0

    def timeout_s(self, rules: ProtocolConfig) -> float:
        """Seconds for which the leader may be silent."""
        return rules.election_timeout(self.pause_s)

    def patience_s(self, rules: ProtocolConfig) -> float:
        """Seconds until an election is tried again: twice as long with each try, since answers may
        take longer than the timeout, and two candidates may have divided the votes."""
        longer = self.timeout_s(rules) * (1 << min(self.tries, TRIES_MAX))
        return min(rules.election_timeout_s, longer)

    def arm(self, now: float, term: int, *, least: float, spread: float) -> None:
        """Set the timer to between `least` and `least + spread` seconds from now."""
        self._armed += 1
        chance = int(digest_text(f"{self.me} {term} {self._armed}")[:8], 16) / 2**32
        self.deadline = now + least + spread * chance
