"""DiLoCo (arXiv:2311.08105): every H inner steps, Nesterov SGD on the mean pseudo-gradient.

Must NOT import torch or another method.
"""

from dataclasses import dataclass

from lowcomm.codecs import codec
from lowcomm.codecs.base import Codec
from lowcomm.config import GATHER, GATHERED, MethodConfig
from lowcomm.outer import F32, descent, nesterov_step


@dataclass(frozen=True, slots=True)
class DiLoCo:
    """One fragment holds the whole model. See `lowcomm.methods.base.Method`."""

    config: MethodConfig

    @property
    def name(self) -> str:
        return "diloco"

    @property
    def inner_steps(self) -> int:
        return self.config.inner_steps

    @property
    def fragments(self) -> int:
        return 1

    def fragment_of(self, parameter: str) -> int:
        del parameter  # All are together.
        return 0

    @property
    def contribution_codec(self) -> Codec:
        return codec(self.config.contribution_codec)

    @property
    def result_codec(self) -> Codec | None:
        name = self.config.resolved_result_codec
        return None if name == GATHER else codec(name)

    @property
    def feedback_decay(self) -> float:
        leaves_much_out = self.config.contribution_codec in GATHERED
        return self.config.feedback_decay if leaves_much_out else 0.0

    @property
    def state_arrays(self) -> tuple[str, ...]:
        # Without momentum there is none to keep, send to joiners and write to checkpoints.
        return ("outer", "momentum") if self.config.outer_momentum else ("outer",)

    def outer_step(
        self, outer_P: F32, momentum_P: F32, mean_P: F32, next_outer_P: F32, next_momentum_P: F32
    ) -> None:
        lr, beta = self.config.outer_lr, self.config.outer_momentum
        if not beta:
            descent(outer_P, mean_P, next_outer_P, lr=lr)
            return
        nesterov_step(outer_P, mean_P, momentum_P, next_outer_P, next_momentum_P, lr=lr, beta=beta)
