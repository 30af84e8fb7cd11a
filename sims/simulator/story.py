"""What happened in a world: lines for people, counts, and the log of all events.

Must NOT judge what happened, nor change a run.
"""

from __future__ import annotations

from collections import Counter
from typing import TextIO

from protocols.raft import Role
from protocols.types import PeerId
from sims.simulator.schedule import VirtualClock


class Story:
    """What happened in one world."""

    def __init__(self, clock: VirtualClock, log: TextIO | None) -> None:
        self._clock = clock
        self.log = log
        """File to which every event and every command is written; None: no log."""
        self.lines: list[str] = []
        self.happened: Counter[str] = Counter()
        """Number of faults that took place, and of their outcomes, by kind."""
        self.steps: Counter[PeerId] = Counter()
        """Number of inner steps that each peer has made in all its incarnations."""
        self.past_moves: Counter[tuple[Role, Role]] = Counter()
        """Changes of role in incarnations that have ended."""
        self.ended_at = 0.0
        """The last time at which a peer stopped by itself."""
        self._planned: tuple[PeerId, float] | None = None
        """(leader, time) of the last relay plan."""

    def tell(self, text: str) -> None:
        """Add a line."""
        self.lines.append(f"{self._clock.now:9.3f} {text}")

    def peer_ended(self) -> None:
        """A peer has stopped by itself."""
        self.ended_at = self._clock.now

    def relayed(self, leader: PeerId) -> None:
        """A leader sends a part of a relay plan: one plan is a message to each relay."""
        if self._planned != (leader, self._clock.now):
            self._planned = (leader, self._clock.now)
            self.happened["relay plan"] += 1
