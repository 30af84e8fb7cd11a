"""All-reduce, the baseline: in every step all nodes apply the mean of their gradients.

The shared state is the parameters and AdamW's two moments. Must NOT import torch or another method.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lowcomm.codecs import codec
from lowcomm.methods.base import GATHERED, TABLE, ContributionCodec, Parameter, StepMethod
from lowcomm.methods.step_exchange import CodedExchange
from protocols.types import ConfigError

SMALLEST = "ternary"
"""The codec with the fewest bytes among those that lose nothing on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceMethod(StepMethod):
    """See `lowcomm.methods.base.StepMethod`."""

    name: Literal["allreduce"] = "allreduce"
    contribution_codec: ContributionCodec = "fp32"
    """The codec of the gradients that each node sends to all others. Not 2bit, sign, topk, topk2bit
    or powersgd, which need error feedback. docs/codecs.md has the loss of each."""

    def __post_init__(self) -> None:
        StepMethod.__post_init__(self)
        name = self.contribution_codec
        if name in GATHERED:
            raise ConfigError(
                f'{TABLE}.contribution_codec is "{name}", but allreduce keeps no residue, so the '
                f"part of a gradient that {name} leaves out would be lost for good: set "
                f'"{SMALLEST}", which loses nothing on average, or run.method.name = "flexdemo", '
                "which keeps the rest"
            )

    def make_exchange(self, parameters: Sequence[Parameter], *, seed: int) -> CodedExchange:
        elements = sum(math.prod(each.shape) for each in parameters)
        return CodedExchange(codec(self.contribution_codec), elements)

    @property
    def state_arrays(self) -> tuple[str, ...]:
        return ("parameters", "exp_avg", "exp_avg_sq")
