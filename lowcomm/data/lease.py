"""Hands the samples leased to a node to the data loader of one of its ranks.

Samples are drawn in order, and seen once a step has used them. All ranks of a node hold equal
leases, since they draw the same numbers in the same order. Must NOT know the content of samples
(batches.py), nor request a lease: the daemon does, ahead of need.
"""

from collections import deque

from protocols.types import ConfigError, LowcommError, Samples, count, first, subtract, union

Share = tuple[int, int] | None
"""(number, count): a rank gets that one of so many equal parts of each batch. None: each rank of
the node gets another one."""


class NodeLease:
    """The samples leased to a node from one result to the next. A data loader may draw ahead of the
    steps."""

    def __init__(self) -> None:
        self.per_step = 1
        """Batches that each inner step uses."""
        self.reserved = False
        """The loop has said how many these are."""
        self.ahead = 0
        """Batches that a loader may draw before their steps."""
        self.share: Share = None
        """This rank's part of each batch."""
        self.undrawn_steps = 0
        """Inner steps in a row for which no batch was drawn; the method counts them."""
        self._left: Samples = ()
        self._drawn: deque[Samples] = deque()
        """Samples of each drawn batch that no step has used yet, the oldest first."""
        self._seen: Samples = ()
        """Samples that steps have used since the last contribution."""
        self._last: Samples = ()
        """Samples of the run's last result, which are drawn repeatedly; () before it."""

    def renew(self, samples: Samples, *, last: bool = False) -> None:
        """Replace the lease: from now on, only these samples are drawn, without those that were
        drawn ahead or that steps have used since the last contribution. `last`: no later result
        brings samples, and no round counts those drawn from now on. If other fragments have rounds
        left (a Restore found them at older rounds), their steps draw the same samples again."""
        self._last = samples if last else ()
        self._left = subtract(self._without_drawn(samples), self._seen)

    def draw(self, wanted: int) -> list[int]:
        """Return the numbers of the next `wanted` samples. Raises LowcommError if fewer are left;
        ConfigError if the loop has drawn more than its steps use, since it would do so again."""
        taken = first(self._left, wanted, ranges_max=len(self._left))
        if count(taken) < wanted and self._last:
            self._seen, self._left = (), self._without_drawn(self._last)
            taken = first(self._left, wanted, ranges_max=len(self._left))
        if count(taken) < wanted:
            waiting, limit = len(self._drawn), self.per_step + self.ahead
            error = ConfigError if waiting > limit else LowcommError
            raise error(
                f"this node's lease has no {wanted} samples left, and no step has used {waiting} "
                f"drawn batches: draw {self.per_step} for each method.step(); if K batches make "
                "one step, call peer.batches(..., accumulate=K); if the workers of a DataLoader "
                "draw N batches ahead, lowcomm.Sampler(..., ahead=N)"
            )
        self._left = subtract(self._left, taken)
        self._drawn.append(taken)
        return [sample for one in taken for sample in range(one.start, one.stop)]

    def step(self) -> None:
        """An inner step has used the oldest `per_step` drawn batches; without any, it used other
        data."""
        for _ in range(min(self.per_step, len(self._drawn))):
            self._seen = union(self._seen, self._drawn.popleft())

    def forget(self) -> None:
        """Forget which samples steps have used since the last contribution, because their work is
        discarded. Call this before `renew`, so that these samples are drawn again."""
        self._seen = ()

    @property
    def unused(self) -> int:
        """Number of samples that no step has used yet. All ranks have the same number after the
        same steps, however far ahead their loaders draw."""
        return count(self._left) + sum(map(count, self._drawn))

    def steps_left(self, batch: int) -> int:
        """Number of inner steps for which `unused` suffices, with batches of so many samples."""
        return self.unused // (batch * self.per_step)

    @property
    def has_drawn(self) -> bool:
        """Whether a drawn batch waits for the step that uses it."""
        return bool(self._drawn)

    def contribute(self) -> Samples:
        """Return the samples that steps have used since the last call."""
        seen, self._seen = self._seen, ()
        return seen

    def _without_drawn(self, samples: Samples) -> Samples:
        for batch in self._drawn:
            samples = subtract(samples, batch)
        return samples
