"""Virtual time: actions at their times, and cores that want to be woken.

Must NOT run anything: the world does.
"""

import heapq
import itertools
from collections.abc import Callable

from protocols.types import PeerId


class VirtualClock:
    """The present time, and what is to happen after it. Actions of the same time keep their order,
    and go before wakes."""

    def __init__(self) -> None:
        self.now = 0.0
        """Virtual time in seconds."""
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._wakes: list[tuple[float, PeerId]] = []
        """Heap of (time at which a core wants to be woken, peer). If a core changes its deadline,
        it is in the heap twice: the caller skips entries other than its present one."""
        self._order = itertools.count()

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        """Run an action in so many seconds."""
        self.at_time(self.now + after_s, action)

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """As `at`, at exactly this time: actions delayed by one pause keep their order."""
        heapq.heappush(self._actions, (due, next(self._order), action))

    def wake(self, due: float, peer: PeerId) -> None:
        """Wake a core at this time; infinity: never."""
        if due < float("inf"):
            heapq.heappush(self._wakes, (due, peer))

    def take(self) -> tuple[float, Callable[[], None] | PeerId] | None:
        """The next action, or the peer to be woken, with its time; None if nothing is left."""
        actions, wakes = self._actions, self._wakes
        if actions and (not wakes or actions[0][0] <= wakes[0][0]):
            due, _, action = heapq.heappop(actions)
            return due, action
        return heapq.heappop(wakes) if wakes else None
