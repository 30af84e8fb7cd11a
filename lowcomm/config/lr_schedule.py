"""The learning rate, by how many inner steps the run has committed.

Must NOT import torch: how long rounds are may follow from it (round_length.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from lowcomm.config.schema import RunConfig

Schedule = Callable[[int], float]
"""From an inner step of the run, counted from 0, to the factor on each learning rate."""


def warmup(step: int, steps: int) -> float:
    """The factor for step `step` (from 0) of a linear warm-up of so many, and for all later ones;
    the first is above 0."""
    return (step + 1) / steps if step < steps else 1.0


@dataclass(frozen=True, slots=True)
class CosineSchedule:
    """Linear warm-up, then half a cosine from 1 down to `final`, which it keeps afterwards."""

    warmup_steps: int
    total_steps: int
    final: float

    @classmethod
    def of(cls, run: RunConfig) -> "CosineSchedule":
        """The one that `[run]` describes."""
        return cls(run.optimizer.warmup_steps, run.total_inner_steps, run.optimizer.lr_final)

    def __call__(self, step: int) -> float:
        """The factor for inner step `step` (from 0)."""
        if step < self.warmup_steps:
            return warmup(step, self.warmup_steps)
        falling = max(self.total_steps - self.warmup_steps, 1)
        progress = min((step - self.warmup_steps) / falling, 1.0)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
