"""What a node may draw, as one of its ranks sees it: drawn in order, seen when a step has used it.

Equal on all ranks of a node, because all draw the same numbers in the same order. Must NOT know
what a sample is (batches.py), nor ask anybody for more: the daemon does, ahead of need.
"""

from collections import deque

from protocols.types.errors import LowcommError
from protocols.types.sample_ranges import Samples, count, first, subtract, union


class NodeLease:
    """Between two results; a loader may draw ahead of the steps."""

    def __init__(self) -> None:
        self._left: Samples = ()
        self._drawn: deque[Samples] = deque()
        """Of each batch that no step has used yet."""
        self._seen: Samples = ()
        self._last: Samples = ()
        """Of the last result: drawn again and again."""

    def renew(self, samples: Samples, *, last: bool = False) -> None:
        """These, and no others, are ours now. What was drawn ahead is not drawn again, nor what
        steps have used since the last contribution. `last`: no result brings others, and no round
        counts what is drawn from now on. Where other fragments have rounds left (a Restore found
        them at older ones), their steps draw the same samples again."""
        self._last = samples if last else ()
        self._left = subtract(self._without_drawn(samples), self._seen)

    def draw(self, wanted: int) -> list[int]:
        """The next batch. Raises LowcommError when there is no whole one left."""
        taken = first(self._left, wanted, ranges_max=len(self._left))
        if count(taken) < wanted and self._last:
            self._seen, self._left = (), self._without_drawn(self._last)
            taken = first(self._left, wanted, ranges_max=len(self._left))
        if count(taken) < wanted:
            raise LowcommError(
                f"this node's lease has no {wanted} samples left, with {len(self._drawn)} batches "
                "drawn that no method.step() has used: take one batch for each step"
            )
        self._left = subtract(self._left, taken)
        self._drawn.append(taken)
        return [sample for one in taken for sample in range(one.start, one.stop)]

    def step(self) -> None:
        """An inner step used the oldest batch; without one it trained on something else."""
        if self._drawn:
            self._seen = union(self._seen, self._drawn.popleft())

    def forget(self) -> None:
        """What the steps did since the last contribution is thrown away: before `renew`, so that
        what they used is drawn again."""
        self._seen = ()

    def contribute(self) -> Samples:
        """What the steps used since the last time."""
        seen, self._seen = self._seen, ()
        return seen

    def _without_drawn(self, samples: Samples) -> Samples:
        for batch in self._drawn:
            samples = subtract(samples, batch)
        return samples
