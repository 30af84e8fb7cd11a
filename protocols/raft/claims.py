"""What other peers claim about terms without a proof, and how far a peer believes them.

A voter that stood for election, or voted, can follow its old leader no more, so the leader must
begin a newer term for it. But one liar must not be able to end each term at once. Must NOT change a
term (election.py).
"""

from dataclasses import dataclass, field

from protocols.types.ids import PeerId

PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 600.0
"""Seconds between two elections that a leader begins since another peer claims a newer term: twice
as long each time."""
DOUBTS_MAX = 16
"""Appends in a row of a peer that has not shown the votes for it. Some may be under way when it is
asked for them."""


@dataclass(slots=True)
class Claims:
    """Of one peer, about all others."""

    later_term: int = 0
    """The highest term that was claimed in a refusal: the next election is about a higher one."""
    _believed_at: float = 0.0
    """From then on a leader begins a newer term if another peer claims one."""
    _pause_s: float = PAUSE_MIN_S
    _doubts: dict[PeerId, int] = field(default_factory=dict[PeerId, int])

    def believes(self, now: float) -> bool:
        """Does a leader begin a newer term now, since another peer claims one?"""
        if now < self._believed_at:
            return False
        if now >= self._believed_at + PAUSE_MAX_S:
            self._pause_s = PAUSE_MIN_S
        self._believed_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return True

    def doubt(self, peer: PeerId) -> bool:
        """An Append of a peer that has not proved that it leads. True if there were too many."""
        self._doubts[peer] = self._doubts.get(peer, 0) + 1
        return self._doubts[peer] > DOUBTS_MAX

    def proved(self, peer: PeerId) -> None:
        self._doubts.pop(peer, None)
