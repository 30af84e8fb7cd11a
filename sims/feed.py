"""The samples of one simulated node's ranks: handed out with each result, drawn step by step.

Must NOT know what a sample is worth, nor what is counted.
"""

from collections.abc import Callable
from dataclasses import dataclass

from protocols.samples import Samples, count, first, subtract


@dataclass(slots=True)
class Feed:
    """As the real shell: ranks that would not get through an interval wait for a lease."""

    interval: int
    """How many samples the ranks need between two results."""
    lease: Samples = ()
    """The core's last word."""
    _left: Samples = ()
    _begun: Samples = ()
    """What was left at the beginning of the interval."""
    _begin: Callable[[], None] | None = None
    """What the ranks do once there is enough."""

    def leased(self, samples: Samples) -> None:
        self.lease = samples
        if self._begin is not None:
            self.start(self._begin)

    def start(self, begin: Callable[[], None]) -> None:
        """The ranks go on, from what is ours now; at once if it is enough."""
        if count(self.lease) < self.interval:
            self._begin = begin
            return
        self._begin = None
        self._begun, self._left = self.lease, self.lease
        begin()

    def stop(self) -> None:
        """The ranks are gone."""
        self._begin = None

    def draw(self, wanted: int) -> list[int]:
        """For one step: the lowest ones."""
        taken = first(self._left, wanted, ranges_max=len(self._left))
        assert count(taken) == wanted, "the ranks draw more than they were given"
        self._left = subtract(self._left, taken)
        return [sample for one in taken for sample in range(one.start, one.stop)]

    def contribute(self) -> Samples:
        """What was drawn since the last time."""
        seen, self._begun = subtract(self._begun, self._left), self._left
        return seen
