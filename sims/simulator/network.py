"""Lines between simulated peers: delays, order, breaks, stalls. What is under way when a
connection ends is lost.

Must NOT know what it carries.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from protocols.types.ids import PeerId

DELAYS_S = (0.0005, 0.01, 0.1)
"""One way, of the lines of one world."""
Schedule = Callable[[float, Callable[[], None]], None]
"""(seconds from now, action)."""


@dataclass(slots=True)
class Lane:
    """One way and one purpose: what is sent on it arrives in order."""

    free_at: float = 0.0
    """The earliest time at which the next one may arrive."""
    under_way: deque[Callable[[], None]] = field(default_factory=deque[Callable[[], None]])
    """What is to be delivered."""


@dataclass(slots=True)
class Line:
    """Everything between two peers."""

    up: bool = False
    connection: int = 0
    """How often they have connected: what was sent before is lost."""
    stalled_until: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """By sender: nothing of it arrives before this time, and nothing is lost: TCP repeats it."""
    held_until: float = 0.0
    """When the last of what a stall held up arrives; what is sent after the stall comes later."""
    slow_until: float = 0.0
    slow_s: float = 0.0
    """Until then, each bulk payload takes this much longer."""
    lanes: dict[tuple[PeerId, str], Lane] = field(default_factory=dict[tuple[PeerId, str], Lane])
    """By (sender, purpose)."""


class Network:
    """One line for each pair of peers."""

    def __init__(self, source: random.Random, schedule: Schedule) -> None:
        self.delay_s = source.choice(DELAYS_S)
        self.jitter = source.choice([0.0, 1.0, 5.0])
        self._random = source
        self._schedule = schedule
        self._lines: dict[tuple[PeerId, PeerId], Line] = {}
        """By (one, other) and by (other, one)."""

    def line(self, one: PeerId, other: PeerId) -> Line:
        line = self._lines.get((one, other))
        if line is None:
            line = self._lines[one, other] = self._lines[other, one] = Line()
        return line

    @property
    def is_slow(self) -> bool:
        """A round takes seconds."""
        return self.delay_s >= DELAYS_S[-1]

    @property
    def slowest_s(self) -> float:
        """What a message takes at most, if nothing holds it up."""
        return self.delay_s * (1 + self.jitter) + 0.001

    def stall(self, sender: PeerId, to: PeerId, until: float) -> None:
        """One way: nothing gets through before `until`."""
        stalled = self.line(sender, to).stalled_until
        stalled[sender] = max(stalled.get(sender, 0.0), until)

    def reachable(self, one: PeerId, other: PeerId, now: float) -> bool:
        """Can a connection be made? It takes both ways."""
        return all(now >= until for until in self.line(one, other).stalled_until.values())

    def let_in(self, peer: PeerId) -> None:
        """It hears everybody again; what was on its way before comes when it was to come."""
        for ends, line in self._lines.items():
            for other in set(ends) - {peer} if peer in ends else ():
                line.stalled_until.pop(other, None)

    def heal(self) -> None:
        """Everything gets through again."""
        for line in self._lines.values():
            line.stalled_until.clear()
            line.slow_until = 0.0

    def connect(self, one: PeerId, other: PeerId) -> None:
        line = self.line(one, other)
        line.up = True
        line.connection += 1
        for lane in line.lanes.values():
            lane.under_way = deque()

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
        begin: Callable[[], None] | None = None,
    ) -> None:
        """Deliver in order per connection and purpose ("control" or "bulk"). `begin`: what the
        first bytes bring about, halfway."""
        line = self.line(sender, to)
        if not line.up:
            return
        delay = self.delay_s * (1 + self.jitter * self._random.random())
        if purpose == "bulk" and now < line.slow_until:
            delay += line.slow_s
        lane = line.lanes.get((sender, purpose))
        if lane is None:
            lane = line.lanes[sender, purpose] = Lane()
        arrival = max(lane.free_at, now + delay)
        if begin is not None:
            self._put(line, lane, sender, now, max(lane.free_at, (now + arrival) / 2), begin)
        self._put(line, lane, sender, now, arrival, deliver)
        lane.free_at = arrival + 1e-6

    def _put(
        self,
        line: Line,
        lane: Lane,
        sender: PeerId,
        now: float,
        arrival: float,
        deliver: Callable[[], None],
    ) -> None:
        lane.under_way.append(deliver)
        arrive = partial(self._arrive, line, line.connection, lane.under_way, sender, arrival)
        self._schedule(arrival - now, arrive)

    def _arrive(
        self,
        line: Line,
        connection: int,
        queue: deque[Callable[[], None]],
        sender: PeerId,
        at: float,
    ) -> None:
        if not line.up or line.connection != connection:
            return
        stalled_until = line.stalled_until.get(sender, 0.0)
        if at < stalled_until:
            line.held_until = max(line.held_until, stalled_until)
            later = partial(self._arrive, line, connection, queue, sender, stalled_until)
            self._schedule(stalled_until - at, later)
        else:
            queue.popleft()()  # The oldest, whichever came through the stall first.
