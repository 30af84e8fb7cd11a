"""All-reduce: every step all nodes apply the mean of their gradients. The baseline.

The state that all have is the parameters and AdamW's two moments. Must NOT import torch or another
method.
"""

from dataclasses import dataclass

from lowcomm.codecs import codec
from lowcomm.codecs.base import Codec
from lowcomm.config import MethodConfig


@dataclass(frozen=True, slots=True)
class AllReduce:
    """See `lowcomm.methods.base.StepMethod`."""

    config: MethodConfig

    @property
    def name(self) -> str:
        return "allreduce"

    @property
    def payload_codec(self) -> Codec:
        return codec(self.config.contribution_codec)

    @property
    def state_arrays(self) -> tuple[str, ...]:
        return ("parameters", "exp_avg", "exp_avg_sq")
