"""The order of virtual time: actions at their times, and cores that want to be woken.

Must NOT run anything: the world does.
"""

import heapq
import itertools
from collections.abc import Callable

from protocols.types import PeerId


class Schedule:
    """What is to happen, by time. Actions of the same time keep their order, and go before
    wakes."""

    def __init__(self) -> None:
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._wakes: list[tuple[float, PeerId]] = []
        """Heap of (time at which a core wants to be woken, peer). If a core changes its deadline,
        it is in the heap twice: the caller skips entries other than its present one."""
        self._order = itertools.count()

    def put(self, due: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._actions, (due, next(self._order), action))

    def wake(self, due: float, peer: PeerId) -> None:
        heapq.heappush(self._wakes, (due, peer))

    def take(self) -> tuple[float, Callable[[], None] | PeerId] | None:
        """The next action, or the peer to be woken, with its time; None if nothing is left."""
        actions, wakes = self._actions, self._wakes
        if actions and (not wakes or actions[0][0] <= wakes[0][0]):
            due, _, action = heapq.heappop(actions)
            return due, action
        return heapq.heappop(wakes) if wakes else None
