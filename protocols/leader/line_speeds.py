"""The line speeds that members report, and which lines are too slow to own parts.

Of N nodes one that owns the share s of a fragment sends (1 - s) of it to the other owners and (N -
1) s of results: 1 + (N - 2) s of the fragment, and receives as much. A node with less than half of
the usual speed delays the round least if it owns nothing (from three nodes on; of two nodes each
sends the whole fragment either way). Between half and all of the usual speed equal parts cost at
most a third more than the best ones, and speeds are not known more exactly. So a node owns an equal
part or none. Must NOT know what is divided into parts.
"""

from collections import deque
from dataclasses import dataclass, field

from protocols.types.ids import PeerId

SLOW, USUAL = 0.5, 0.75
"""Shares of the usual speed: a node below the first owns nothing until it is above the second."""
KEPT = 4
"""Remembered speeds of each node; the best one counts, since a node with little to send looks
slow."""


@dataclass(slots=True)
class LinkSpeeds:
    """The speeds of members, as the leader of one term knows them."""

    _told: dict[PeerId, deque[int]] = field(default_factory=dict[PeerId, deque[int]])
    _slow: set[PeerId] = field(default_factory=set[PeerId])
    _answers: dict[tuple[PeerId, ...], tuple[PeerId, ...]] = field(
        default_factory=dict[tuple[PeerId, ...], tuple[PeerId, ...]]
    )
    """Cached owners by roster since the last report: the leader asks after each event."""

    def told(self, peer: PeerId, line: int) -> None:
        """Note a speed in bytes a second; 0 if it is not known."""
        self._answers.clear()
        kept = self._told.setdefault(peer, deque(maxlen=KEPT))
        if line:
            kept.append(line)

    def forget(self, peer: PeerId) -> None:
        self._answers.clear()
        self._told.pop(peer, None)
        self._slow.discard(peer)

    def owners(self, roster: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """The peers of the roster that should own parts, at least one; () until all have reported.

        The usual speed is the upper median of the known ones, so a single peer cannot make all
        others look slow, and a peer with a line that was never full is not slow.
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
