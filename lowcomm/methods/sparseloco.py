"""SparseLoCo (arXiv:2508.15706): the 64 largest of each 4096 differences in 2 bits, with error
feedback.

The outer step is a plain step by the mean. The residue of error feedback, which each node keeps for
itself, acts as a momentum of old contributions. Chunks are 4096 consecutive elements of the
fragment. The paper takes 64 x 64 squares of a matrix, so that shards can be compressed alone; our
daemon has the whole fragment, and values that a chunk cannot send go into the next round either
way. Must NOT import torch or another method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lowcomm.methods.base import TABLE, ContributionCodec, RoundMethod
from lowcomm.numerics.operations import F32, descent
from lowcomm.numerics.robust_means import Room, sent_mean
from lowcomm.validation import check_values
from protocols.types import ConfigError, Contributor


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLoCoMethod(RoundMethod):
    """See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["sparseloco"] = "sparseloco"
    inner_steps: int = 30
    contribution_codec: ContributionCodec = "topk2bit"
    feedback_decay: float = 0.95
    outer_lr: float = 1.0
    """The outer parameters move by this times the mean difference."""
    sparse_mean: Literal["world", "contributors"] = "world"
    """The mean of each element: over all nodes that contributed to the round, with zeros for those
    that did not send it (`world`, the paper); or only over those that sent it (`contributors`,
    templar's code), which is larger, by a factor of up to the number of nodes."""

    def __post_init__(self) -> None:
        RoundMethod.__post_init__(self)
        check_values(TABLE, self, positive=("outer_lr",))
        if self.sparse_mean == "contributors" and self.aggregate != "mean":
            raise ConfigError(
                f'{TABLE}.sparse_mean is "contributors", which is a mean of its own, but '
                f'{TABLE}.aggregate is "{self.aggregate}": leave out one of them'
            )

    @property
    def state_arrays(self) -> tuple[str, ...]:
        return ("outer",)

    def combine(
        self,
        contributions: Sequence[F32],
        contributors: Sequence[Contributor],
        out: F32,
        room: Room,
    ) -> None:
        if self.sparse_mean == "world":
            RoundMethod.combine(self, contributions, contributors, out, room)
        else:
            sent_mean(contributions, self.weights(contributors), out, room(0))

    def outer_step(
        self, outer_P: F32, momentum_P: F32, mean_P: F32, next_outer_P: F32, next_momentum_P: F32
    ) -> None:
        descent(outer_P, mean_P, next_outer_P, lr=self.outer_lr)
