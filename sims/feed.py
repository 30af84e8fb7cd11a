"""The samples of one simulated node's ranks: handed out with each result, drawn step by step.

Must NOT know what a sample is worth, nor what is counted.
"""

from collections.abc import Callable
from dataclasses import dataclass

from protocols.samples import Samples, count, first, subtract, union


@dataclass(slots=True)
class Feed:
    """As the real shell: ranks that would not get through an interval wait for a lease."""

    interval: int
    """How many samples the ranks need between two results."""
    lease: Samples = ()
    """The core's last word."""
    _left: Samples = ()
    _seen: Samples = ()
    _handed: Samples = ()
    """Contributed, and the lease is older than that."""
    _begin: Callable[[], None] | None = None
    """What the ranks do once there is enough."""

    def leased(self, samples: Samples) -> None:
        self.lease = samples
        if self._begin is not None:
            self.start(self._begin)

    def start(self, begin: Callable[[], None]) -> None:
        """The ranks go on, from what is ours now; at once if it is enough."""
        left = self.lease
        for used in (self._seen, self._handed):
            left = subtract(left, used) if used else left
        if count(left) < self.interval:
            self._begin = begin
            return
        self._begin, self._left = None, left
        begin()

    def stop(self) -> None:
        """The ranks are gone."""
        self._begin = None
        self.forget()

    def forget(self) -> None:
        """What they did since they contributed last is thrown away."""
        self._seen = ()

    def holds(self, wanted: int) -> bool:
        """Is there enough for one step?"""
        return count(self._left) >= wanted

    def draw(self, wanted: int) -> list[int]:
        """For one step: the lowest ones."""
        taken = first(self._left, wanted, ranges_max=len(self._left))
        assert count(taken) == wanted, "the ranks draw more than they were given"
        self._left, self._seen = subtract(self._left, taken), union(self._seen, taken)
        return [sample for one in taken for sample in range(one.start, one.stop)]

    def contribute(self) -> Samples:
        """What was drawn since the last time."""
        seen, self._seen = self._seen, ()
        self._handed = union(self._handed, seen)
        return seen

    def counted_on(self, samples: Samples) -> None:
        """The core knows of a contribution with these samples, and the lease is newer than that."""
        self._handed = subtract(self._handed, samples)
