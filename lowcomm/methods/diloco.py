"""DiLoCo (arXiv:2311.08105): every H inner steps, Nesterov SGD on the mean pseudo-gradient.

Must NOT import torch or another method.
"""

from dataclasses import dataclass
from typing import Literal

from lowcomm.methods.base import NesterovMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class DiLoCoMethod(NesterovMethod):
    """The whole model is one fragment. See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["diloco"] = "diloco"
