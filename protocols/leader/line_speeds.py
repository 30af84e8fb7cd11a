"""How fast members send, as they say, and whose line is too slow to bring others what it sums.

With N nodes of which i owns the share s of a fragment, it sends (1 - s) of it to the other owners
and (N - 1) s of results: 1 + (N - 2) s of the fragment, and receives as much. Who is slower than
half of what is usual has the least to wait for, and lets others wait least, where it owns nothing
(from three nodes on; of two each sends all of it either way). Between half and all of the usual
speed equal parts cost at most a third more than the best ones would, and speeds are not known that
well. So a part is everybody's equally or nobody's. Must NOT know what is cut into parts.
"""

from collections import deque
from dataclasses import dataclass, field

from protocols.types.ids import PeerId

SLOW, USUAL = 0.5, 0.75
"""Of the usual speed: below the first nobody owns anything, until it is above the second."""
KEPT = 4
"""Speeds of each; the best of them counts, as whoever had little to send looks slow."""


@dataclass(slots=True)
class Lines:
    """Of the members; the leader's, and begun anew in each term."""

    _told: dict[PeerId, deque[int]] = field(default_factory=dict[PeerId, deque[int]])
    _slow: set[PeerId] = field(default_factory=set[PeerId])
    _answers: dict[tuple[PeerId, ...], tuple[PeerId, ...]] = field(
        default_factory=dict[tuple[PeerId, ...], tuple[PeerId, ...]]
    )
    """Of rosters, since anybody said anything: the leader asks at every event."""

    def told(self, peer: PeerId, line: int) -> None:
        """Bytes a second; 0: it does not know."""
        self._answers.clear()
        kept = self._told.setdefault(peer, deque(maxlen=KEPT))
        if line:
            kept.append(line)

    def forget(self, peer: PeerId) -> None:
        self._answers.clear()
        self._told.pop(peer, None)
        self._slow.discard(peer)

    def owners(self, roster: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """Who of them should own parts, never nobody; () while somebody has not said anything.

        The usual speed is the upper one in the middle, of those that are known: nobody makes all
        others slow alone, and whose line was never full is not slow.
        """
        if roster not in self._answers:
            self._answers = {roster: self._owners(roster)}
        return self._answers[roster]

    def _owners(self, roster: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        if any(peer not in self._told for peer in roster):
            return ()
        speeds = {peer: max(self._told[peer]) for peer in roster if self._told[peer]}
        if len(roster) < 3 or not speeds:
            return roster
        usual = sorted(speeds.values())[len(speeds) // 2]
        for peer, speed in speeds.items():
            if speed < SLOW * usual:
                self._slow.add(peer)
            elif speed > USUAL * usual:
                self._slow.discard(peer)
        return tuple(peer for peer in roster if peer not in self._slow)
