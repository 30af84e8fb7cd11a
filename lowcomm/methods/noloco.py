"""NoLoCo (arXiv:2506.10911): every H inner steps each node exchanges with one other, however many
there are.

Each round pairs the nodes anew (protocols/state/gossip_pairs.py); of an odd number one is alone.
Node i has outer parameters phi_i and a momentum m_i of its own, and of the nodes j of its pair

    m_i <- mu m_i + eta mean_j(theta_j - phi_j) + gamma (mean_j(phi_j) - phi_i)
    phi_i <- phi_i + m_i, theta_i <- phi_i

With gamma = eta, as in the authors' code, the phi_j in the two means are the same and cancel:

    m_i <- mu m_i + eta (mean_j(theta_j) - phi_i)

So it is theta alone that travels, half of what the formula seems to need, and the arithmetic below
is the second line's. The mean is over the nodes of the pair, each with the same weight. Must NOT
import torch or another method.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lowcomm.methods.base import TABLE, ContributionCodec, ResultCodec, RoundMethod
from lowcomm.numerics.operations import F32, heavy_ball_step
from lowcomm.validation import check_values
from protocols.types.errors import ConfigError
from protocols.types.ids import Contributor

CODECS: tuple[ContributionCodec, ...] = ("fp32", "bf16", "fp16")
"""Of parameters, which are hundreds of times as large as what a round changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLoCo(RoundMethod):
    """One fragment holds the whole model. See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["noloco"] = "noloco"
    inner_steps: int = 50
    contribution_codec: ContributionCodec = "fp32"
    """How parameters travel to the other node: fp32, bf16 or fp16. docs/codecs.md says what each
    loses."""
    result_codec: ResultCodec = "auto"
    """Leave it out: each of a pair makes the mean for itself, and none travels."""
    weight_max: float = 0.0
    """Leave it out: both of a pair weigh the same."""
    outer_lr: float = 0.7
    """How far the momentum pulls towards the pair's mean (eta, and gamma)."""
    outer_momentum: float = 0.5
    """What is left of the momentum after a round (mu)."""

    replicas_equal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        RoundMethod.__post_init__(self)
        check_values(TABLE, self, positive=("outer_lr",))
        if not 0 <= self.outer_momentum < 1:
            got = self.outer_momentum
            raise ConfigError(f"{TABLE}.outer_momentum must be in [0, 1), got {got}")
        if self.contribution_codec not in CODECS:
            raise ConfigError(
                f'{TABLE}.contribution_codec is "{self.contribution_codec}", but with noloco '
                "parameters travel, of which it would lose more than a round changes: set "
                f"{', '.join(CODECS[:-1])} or {CODECS[-1]}"
            )
        if self.result_codec != "auto":
            raise ConfigError(
                f'{TABLE}.result_codec is "{self.result_codec}", but with noloco no result '
                "travels: leave it out"
            )
        if self.round_s:
            raise ConfigError(
                f"{TABLE}.round_s is {self.round_s}, but both of a noloco pair weigh the same: of "
                "a round of one time a slow node's few steps would count as much as a fast one's "
                "many: leave it out"
            )
        if self.aggregate != "mean" or self.weight_max:
            raise ConfigError(
                f"{TABLE}.aggregate and {TABLE}.weight_max cannot tell which of two is wrong, and "
                "noloco exchanges in pairs of equal weight: leave them out"
            )

    def weight(self, contributor: Contributor) -> int:
        """The same for both of a pair, whatever they have trained on."""
        return 1

    @property
    def state_arrays(self) -> tuple[str, ...]:
        return ("outer", "momentum")

    def outer_step(
        self, outer_P: F32, momentum_P: F32, mean_P: F32, next_outer_P: F32, next_momentum_P: F32
    ) -> None:
        heavy_ball_step(
            outer_P,
            mean_P,
            momentum_P,
            next_outer_P,
            next_momentum_P,
            lr=self.outer_lr,
            beta=self.outer_momentum,
        )
