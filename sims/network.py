"""Lines between simulated peers: delays, order, breaks, stalls. What is under way when a
connection ends is lost.

Must NOT know what it carries.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protocols.ids import PeerId

Schedule = Callable[[float, Callable[[], None]], None]
"""(seconds from now, action)."""


@dataclass(slots=True)
class Line:
    """Everything between two peers."""

    up: bool = False
    connection: int = 0
    """How often they have connected: what was sent before is lost."""
    stalled_until: float = 0.0
    """Nothing arrives before this time, and nothing is lost: a hanging TCP connection."""
    slow_until: float = 0.0
    slow_s: float = 0.0
    """Until then, each bulk payload takes this much longer."""
    free_at: dict[tuple[PeerId, str], float] = field(
        default_factory=dict[tuple[PeerId, str], float]
    )
    """By (sender, purpose): the earliest time at which the next one may arrive."""
    under_way: dict[tuple[PeerId, str], deque[Callable[[], None]]] = field(
        default_factory=dict[tuple[PeerId, str], deque[Callable[[], None]]]
    )
    """By (sender, purpose): what is to be delivered, in order."""


class Network:
    """One line for each pair of peers."""

    def __init__(self, source: random.Random, schedule: Schedule) -> None:
        self.delay_s = source.choice([0.0005, 0.01, 0.1])
        self._jitter = source.choice([0.0, 1.0, 5.0])
        self._random = source
        self._schedule = schedule
        self._lines: dict[frozenset[PeerId], Line] = {}

    def line(self, one: PeerId, other: PeerId) -> Line:
        return self._lines.setdefault(frozenset((one, other)), Line())

    def connect(self, one: PeerId, other: PeerId) -> None:
        line = self.line(one, other)
        line.up = True
        line.connection += 1
        line.under_way.clear()

    def disconnect(self, one: PeerId, other: PeerId) -> bool:
        """False if there was no connection."""
        line = self.line(one, other)
        was, line.up = line.up, False
        return was

    def carry(
        self,
        sender: PeerId,
        to: PeerId,
        *,
        purpose: str,
        now: float,
        deliver: Callable[[], None],
    ) -> None:
        """Deliver in order per connection and purpose ("control" or "bulk")."""
        line = self.line(sender, to)
        if not line.up:
            return
        delay = self.delay_s * (1 + self._jitter * self._random.random())
        if purpose == "bulk" and now < line.slow_until:
            delay += line.slow_s
        arrival = max(line.free_at.get((sender, purpose), 0.0), now + delay)
        line.free_at[sender, purpose] = arrival + 1e-6
        queue = line.under_way.setdefault((sender, purpose), deque())
        queue.append(deliver)
        connection = line.connection

        def arrive(at: float) -> None:
            if not line.up or line.connection != connection:
                return
            if at < line.stalled_until:
                wait, later = line.stalled_until - at, line.stalled_until
                self._schedule(wait, lambda: arrive(later))
            else:
                queue.popleft()()  # The oldest, whichever came through the stall first.

        self._schedule(arrival - now, lambda: arrive(arrival))
