"""The schedule of the learning rate, as a function of the inner steps of the run.

Must NOT import torch: the daemon derives lengths of rounds from it (round_length.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from lowcomm.config.schema import RunConfig

Schedule = Callable[[int], float]
"""Maps an inner step of the run, counted from 0, to a factor for each learning rate."""


def warmup(step: int, steps: int) -> float:
    """Return the factor of step `step` (from 0) for a linear warm-up over `steps` steps: 1 /
    `steps` at first, and 1 from its last step on."""
    return (step + 1) / steps if step < steps else 1.0


@dataclass(frozen=True, slots=True)
class CosineSchedule:
    """A linear warm-up, then half a cosine from 1 down to `final`, which stays afterwards."""

    warmup_steps: int
    total_steps: int
    final: float

    @classmethod
    def of(cls, run: RunConfig) -> "CosineSchedule":
        """Make the schedule that `[run]` describes."""
        return cls(run.optimizer.warmup_steps, run.total_inner_steps, run.optimizer.lr_final)

    def __call__(self, step: int) -> float:
        """Return the factor of inner step `step` (from 0)."""
        if step < self.warmup_steps:
            return warmup(step, self.warmup_steps)
        falling = max(self.total_steps - self.warmup_steps, 1)
        progress = min((step - self.warmup_steps) / falling, 1.0)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
