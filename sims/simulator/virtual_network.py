"""Links between simulated peers: delay, order, disconnections and stalls. Data under way is lost
when its connection ends.

Must NOT know the payloads that it carries.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from protocols.types import PeerId

DELAYS_S = (0.0005, 0.01, 0.1)
"""One-way delays in seconds; all links of a world have the same."""
Schedule = Callable[[float, Callable[[], None]], None]
"""(seconds from now, action)."""


@dataclass(slots=True)
class VirtualLane:
    """One direction and one purpose of a link. Its payloads arrive in order."""

    free_at: float = 0.0
    """The earliest time at which the next payload may arrive."""
    under_way: deque[Callable[[], None]] = field(default_factory=deque[Callable[[], None]])
    """Deliveries of the payloads under way, in order."""


@dataclass(slots=True)
class VirtualLink:
    """The link between two peers: both directions, all purposes."""

    up: bool = False
    connection: int = 0
    """Number of connections so far. Payloads of earlier connections are lost."""
    stalled_until: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """By sender: time before which none of its payloads arrives. No payload is lost: TCP would
    retransmit."""
    held_until: float = 0.0
    """Time at which the last payload delayed by a stall arrives. Payloads sent after the stall
    arrive later."""
    slow_until: float = 0.0
    slow_s: float = 0.0
    """Seconds by which each bulk payload is delayed until `slow_until`."""
    lanes: dict[tuple[PeerId, str], VirtualLane] = field(
        default_factory=dict[tuple[PeerId, str], VirtualLane]
    )
    """By (sender, purpose)."""


class Network:
    """The links of a world, one for each pair of peers."""

    def __init__(self, source: random.Random, schedule: Schedule) -> None:
        self.delay_s = source.choice(DELAYS_S)
        self.jitter = source.choice([0.0, 1.0, 5.0])
        self._random = source
        self._schedule = schedule
        self._lines: dict[tuple[PeerId, PeerId], VirtualLink] = {}
        """Each link twice: by (one, other) and by (other, one)."""

    def line(self, one: PeerId, other: PeerId) -> VirtualLink:
        line = self._lines.get((one, other))
        if line is None:
            line = self._lines[one, other] = self._lines[other, one] = VirtualLink()
        return line

    @property
    def is_slow(self) -> bool:
        """True if the delay is so long that a round takes seconds."""
        return self.delay_s >= DELAYS_S[-1]

    @property
    def slowest_s(self) -> float:
        """The longest time in seconds that a message takes without stalls."""
        return self.delay_s * (1 + self.jitter) + 0.001

    def stall(self, sender: PeerId, to: PeerId, until: float) -> None:
        """Delay all payloads of one direction until this time."""
        stalled = self.line(sender, to).stalled_until
        stalled[sender] = max(stalled.get(sender, 0.0), until)

    def reachable(self, one: PeerId, other: PeerId, now: float) -> bool:
        """True if a connection can be made, which takes both directions."""
        return all(now >= until for until in self.line(one, other).stalled_until.values())

    def let_in(self, peer: PeerId) -> None:
        """End the stalls of all payloads to this peer. Payloads already delayed arrive no
        earlier."""
        for ends, line in self._lines.items():
            for other in set(ends) - {peer} if peer in ends else ():
                line.stalled_until.pop(other, None)

    def heal(self) -> None:
        """End all stalls and slow links."""
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
        """End the connection; False if there was none."""
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
        """Deliver a payload, in order per connection and purpose ("control" or "bulk"). `begin`: an
        action at the arrival of the first bytes, halfway."""
        line = self.line(sender, to)
        if not line.up:
            return
        delay = self.delay_s * (1 + self.jitter * self._random.random())
        if purpose == "bulk" and now < line.slow_until:
            delay += line.slow_s
        lane = line.lanes.get((sender, purpose))
        if lane is None:
            lane = line.lanes[sender, purpose] = VirtualLane()
        arrival = max(lane.free_at, now + delay)
        if begin is not None:
            self._put(line, lane, sender, now, max(lane.free_at, (now + arrival) / 2), begin)
        self._put(line, lane, sender, now, arrival, deliver)
        lane.free_at = arrival + 1e-6

    def _put(
        self,
        line: VirtualLink,
        lane: VirtualLane,
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
        line: VirtualLink,
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
            queue.popleft()()  # The oldest one first, even if a later one passed the stall before.
