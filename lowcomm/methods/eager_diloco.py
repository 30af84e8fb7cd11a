"""Eager updates for DiLoCo (arXiv:2502.12996): no node waits for a round; each applies its own part
of it at once, and the others' one round later.

Node m applies, after round t, Delta_m(t) / M + (Delta(t-1) - Delta_m(t-1) / M), where Delta is the
mean of all Delta_m. Nesterov is linear, so its parameters are S + O_m: S is driven by Delta(t-1),
equal everywhere, and what daemons hold, compare and give to joiners; O_m is driven by the rest,
Delta_m(t) / M - Delta_m(t-1) / M, and is the ranks' own (lowcomm/training/eager_offset.py). A run
ends with S. Must NOT import torch or another method.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lowcomm.methods.base import NesterovMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerDiLoCo(NesterovMethod):
    """One fragment holds the whole model. See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["eager_diloco"] = "eager_diloco"

    waits_for_rounds: ClassVar[bool] = False

    @property
    def overlap_steps(self) -> int:
        """A whole round: the result of a contribution is taken where the next one is made."""
        return self.inner_steps

    @property
    def discards_overlap(self) -> bool:
        return False
