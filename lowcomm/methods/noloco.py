"""NoLoCo (arXiv:2506.10911): every H inner steps each node exchanges with one other, in a run of
any size.

Each round makes new pairs of nodes (protocols/state/gossip_pairs.py); with an odd number of nodes
one is alone. Node i has its own outer parameters phi_i and momentum m_i. With the nodes j of its
pair it computes

    m_i <- mu m_i + eta mean_j(theta_j - phi_j) + gamma (mean_j(phi_j) - phi_i)
    phi_i <- phi_i + m_i, theta_i <- phi_i

With gamma = eta, as in the authors' code, the phi_j in the two means are equal and cancel:

    m_i <- mu m_i + eta (mean_j(theta_j) - phi_i)

So only theta is sent, half of what the formula seems to need, and the code below computes the last
formula. The mean is over the nodes of the pair, each with the same weight. Must NOT import torch or
another method.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lowcomm.methods.base import TABLE, ContributionCodec, ResultCodec, RoundMethod
from lowcomm.numerics.operations import F32, heavy_ball_step
from lowcomm.validation import check_values
from protocols.types import ConfigError, Contributor

CODECS: tuple[ContributionCodec, ...] = ("fp32", "bf16", "fp16")
"""Codecs for parameters, which are hundreds of times as large as their change in a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLoCoMethod(RoundMethod):
    """The whole model is one fragment. See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["noloco"] = "noloco"
    inner_steps: int = 50
    contribution_codec: ContributionCodec = "fp32"
    """The codec of the parameters that are sent to the other node: fp32, bf16 or fp16.
    docs/codecs.md has the loss of each."""
    result_codec: ResultCodec = "auto"
    """Leave it out: each node of a pair computes the mean by itself, and no result is sent."""
    weight_max: float = 0.0
    """Leave it out: both nodes of a pair weigh the same."""
    outer_lr: float = 0.7
    """The strength with which the pair's mean pulls the momentum (eta, and gamma)."""
    outer_momentum: float = 0.5
    """The share of the momentum that remains after a round (mu)."""

    replicas_equal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        RoundMethod.__post_init__(self)
        check_values(TABLE, self, positive=("outer_lr",))
        if not 0 <= self.outer_momentum < 1:
            got = self.outer_momentum
            raise ConfigError(f"{TABLE}.outer_momentum must be in [0, 1), got {got}")
        if self.contribution_codec not in CODECS:
            raise ConfigError(
                f'{TABLE}.contribution_codec is "{self.contribution_codec}", but noloco sends '
                "parameters, and this codec would lose more than a round changes: set "
                f"{', '.join(CODECS[:-1])} or {CODECS[-1]}"
            )
        if self.result_codec != "auto":
            raise ConfigError(
                f'{TABLE}.result_codec is "{self.result_codec}", but noloco sends no result: '
                "leave it out"
            )
        if self.round_s:
            raise ConfigError(
                f"{TABLE}.round_s is {self.round_s}, but both nodes of a noloco pair weigh the "
                "same, so a slow node's few steps would count as much as a fast node's many: leave "
                "it out"
            )
        if self.aggregate != "mean" or self.weight_max:
            raise ConfigError(
                f"{TABLE}.aggregate and {TABLE}.weight_max cannot tell which of two nodes is "
                "wrong, and noloco exchanges in pairs of equal weight: leave them out"
            )

    def weight(self, contributor: Contributor) -> int:
        """1 for both nodes of a pair, however much they trained."""
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
