"""Eager updates for DiLoCo (arXiv:2502.12996): no node waits for a round. Each applies its own part
of it at once, and the parts of the others one round later.

After round t, node m applies Delta_m(t) / M + (Delta(t-1) - Delta_m(t-1) / M), where Delta is the
mean of all Delta_m. Nesterov is linear, so the node's parameters are S + O_m. S is driven by
Delta(t-1) and equal on all nodes; daemons hold S, compare it, and give it to joiners. O_m is driven
by the rest, Delta_m(t) / M - Delta_m(t-1) / M, and only the node's ranks hold it
(lowcomm/training/eager_offset.py). A run ends with S. Must NOT import torch or another method.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lowcomm.methods.base import NesterovMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerDiLoCoMethod(NesterovMethod):
    """The whole model is one fragment. See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["eager_diloco"] = "eager_diloco"

    waits_for_rounds: ClassVar[bool] = False

    @property
    def overlap_steps(self) -> int:
        """A whole round: the result of a contribution is taken when the next contribution is
        made."""
        return self.inner_steps

    @property
    def discards_overlap(self) -> bool:
        return False
