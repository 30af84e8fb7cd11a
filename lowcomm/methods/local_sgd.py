"""Local SGD (arXiv:1805.09767): every H inner steps all nodes continue from the mean of their
parameters.

Must NOT import torch or another method.
"""

from dataclasses import dataclass
from typing import Literal

from lowcomm.methods.base import RoundMethod
from lowcomm.numerics.operations import F32, descent


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSGDMethod(RoundMethod):
    """The whole model is one fragment. See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["local_sgd"] = "local_sgd"

    @property
    def state_arrays(self) -> tuple[str, ...]:
        return ("outer",)

    def outer_step(
        self, outer_P: F32, momentum_P: F32, mean_P: F32, next_outer_P: F32, next_momentum_P: F32
    ) -> None:
        descent(outer_P, mean_P, next_outer_P, lr=1.0)
