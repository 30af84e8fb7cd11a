"""What a method is, as far as the daemon sees it; an object of it is the table `[run.method]`.

A method's file says what is contributed, when, in which codecs, and what the outer step is. Must
NOT import torch: the half that runs in the ranks is `lowcomm/training/round_methods.py` (rounds)
and `lowcomm/training/step_methods.py` (per step), for all methods.

Methods are pure: they hold the agreed configuration, never the state of a run.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lowcomm.codecs import codec
from lowcomm.codecs.base import Codec
from lowcomm.methods.step_exchange import StepExchange
from lowcomm.numerics import operations
from lowcomm.numerics.kernels import NORM_ELEMENTS
from lowcomm.numerics.operations import F32, descent, nesterov_step
from lowcomm.numerics.robust_means import (
    Aggregate,
    Room,
    centred_clipping,
    clipped_mean,
    grain_of,
    trimmed_count,
)
from lowcomm.validation import check_values
from protocols.types.errors import ConfigError
from protocols.types.ids import Contributor
from protocols.types.limits import FRAGMENTS_MAX

TABLE = "run.method"
GATHER = "gather"
"""In place of a codec for results."""
GATHERED = ("2bit", "sign", "topk", "topk2bit", "powersgd")
"""They leave much out, and take little: a mean takes many times as much as what a few peers
contributed."""
ContributionCodec = Literal[
    "fp32",
    "bf16",
    "fp16",
    "int8",
    "int4",
    "fp4",
    "ternary",
    "2bit",
    "sign",
    "topk",
    "topk2bit",
    "powersgd",
]
ResultCodec = Literal["auto", "gather", "fp32", "bf16", "fp16", "int8", "int4", "fp4"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the model, as its layout names it."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMethod(ABC):
    """A method whose nodes meet in rounds: each trains by itself, and now and then they take an
    outer step together."""

    name: str
    inner_steps: int = 20
    """Inner steps between two outer steps of a fragment (H)."""
    contribution_codec: ContributionCodec = "fp32"
    """How pseudo-gradients travel to those who sum them. docs/codecs.md says what each loses."""
    result_codec: ResultCodec = "auto"
    """How their mean travels back. With fp4 contributions take a finer one: bf16 or int8. `gather`:
    not the mean, but what each contributed. `auto`: gather for 2bit, sign, topk, topk2bit and
    powersgd, else fp32."""
    feedback_decay: float = 1.0
    """What 2bit, sign, topk, topk2bit and powersgd leave out of a contribution goes into the next:
    all of it (1), less (SparseLoCo: 0.95), or nothing (0)."""
    aggregate: Aggregate = "mean"
    """What is made of contributions, of which some may be wrong: their `mean`; a `trimmed_mean`,
    which leaves out the largest and smallest of each element, and in which all weigh the same; a
    `clipped_mean`, which scales each block of 4096 down to the median norm of the contributions;
    `centred_clipping`, which does that to what each differs from their median by."""
    trimmed_share: float = 0.2
    """A trimmed mean leaves out at least this share of the contributions at each end."""
    weight_max: float = 10.0
    """No contribution weighs more than so many times the median one: a weight is what a node says
    of itself, so without a limit one wrong number makes a round that node's alone, whatever the
    aggregate. Nodes of very different speeds may need more; 0: each weighs as much as it says."""
    qsr_alpha: float = 0.0
    """Rounds grow longer as the learning rate falls (the Quadratic Synchronization Rule,
    arXiv:2310.14423): (qsr_alpha / learning rate)^2 inner steps, and no fewer than inner_steps. The
    run then has fewer rounds, of as many inner steps in all; 0: every round has inner_steps."""
    round_s: float = 0.0
    """A node contributes after so many seconds of training, or after inner_steps if that is sooner:
    in one time each node makes as many steps as it can, and none waits for a slower one. Set
    inner_steps to what the fastest makes; 0: all make inner_steps. Not with noloco."""

    waits_for_rounds: ClassVar[bool] = True
    """Of the whole model, and ranks train on when they have its result. Only then may rounds be of
    different lengths."""
    replicas_equal: ClassVar[bool] = True
    """All nodes have the same outer state. If not, each exchanges with one other a round (gossip):
    it contributes its parameters, and not what these moved by from others' outer ones."""
    answers: ClassVar[bool] = False
    """A node contributes after its next inner step when others wait for it, with the steps that it
    made by then. If not, they wait until it has made all of the round."""
    needs_norms: ClassVar[bool] = False
    """What is made of contributions needs norms of whole tensors: everybody gets all of them, and
    makes it at the commit (lowcomm/numerics/direction_means.py)."""

    def __post_init__(self) -> None:
        lengths = ("qsr_alpha", "round_s")
        check_values(TABLE, self, positive=("inner_steps",), not_negative=lengths)
        set_lengths = [name for name in lengths if getattr(self, name)]
        if set_lengths and not self.waits_for_rounds:
            raise ConfigError(
                f"{TABLE}.{set_lengths[0]} is {getattr(self, set_lengths[0])}, but {self.name} "
                "trains on while a round is exchanged, so all its rounds have inner_steps: leave "
                "it out"
            )
        if len(set_lengths) > 1:
            raise ConfigError(
                f"{TABLE}.qsr_alpha and {TABLE}.round_s both say how long a round is: leave out one"
            )
        if not 0 <= self.feedback_decay <= 1:
            got = self.feedback_decay
            raise ConfigError(f"{TABLE}.feedback_decay must be in [0, 1], got {got}")
        name = self.contribution_codec
        if not codec(name).reducible and self.mean_codec is not None:
            raise ConfigError(
                f'{TABLE}.result_codec is "{self.result_codec}", but a mean of {name} is not '
                'sparse any more: leave it out, or set "gather"'
            )
        if self.needs_norms and self.mean_codec is not None:
            raise ConfigError(
                f'{TABLE}.result_codec is "{self.result_codec}", but {self.name} makes of whole '
                'tensors what nobody could sum in parts: leave it out, or set "gather"'
            )
        self._check_aggregate()

    def _check_aggregate(self) -> None:
        if not 0 < self.trimmed_share < 0.5:
            got = self.trimmed_share
            raise ConfigError(
                f"{TABLE}.trimmed_share must be above 0 and below 0.5, at which nothing is left, "
                f"got {got}"
            )
        if self.weight_max != 0 and self.weight_max < 1:
            got = self.weight_max
            raise ConfigError(
                f"{TABLE}.weight_max must be at least 1, the median weight, or 0 for no limit, "
                f"got {got}"
            )
        name = self.contribution_codec
        if self.aggregate == "trimmed_mean" and not codec(name).reducible:
            raise ConfigError(
                f'{TABLE}.aggregate is "trimmed_mean", but with {name} most elements are in one '
                'contribution at most, which would be trimmed: set "clipped_mean"'
            )

    # What travels ---------------------------------------------------------------------------

    @property
    def codec(self) -> Codec:
        """How pseudo-gradients travel."""
        return codec(self.contribution_codec)

    @property
    def mean_codec(self) -> Codec | None:
        """How their mean travels back. None: by gather, everybody gets what was contributed and
        makes the mean."""
        name = self.result_codec
        if name == "auto":
            gathers = self.needs_norms or self.contribution_codec in GATHERED
            name = GATHER if gathers else "fp32"
        return None if name == GATHER else codec(name)

    @property
    def feedback(self) -> float:
        """What of the error of a contribution is left in the next one; 0: no error feedback."""
        return self.feedback_decay if self.contribution_codec in GATHERED else 0.0

    # When -----------------------------------------------------------------------------------

    @property
    def overlap_steps(self) -> int:
        """A result is taken so many inner steps after the contribution (tau); 0: the ranks wait
        for it."""
        return 0

    def in_flight(self, fragments: int) -> int:
        """Of so many fragments at most this many are contributed and have no result yet."""
        return min(fragments, 1 + self.overlap_steps // max(self.inner_steps // fragments, 1))

    @property
    def mixing(self) -> float:
        """What is left of the ranks' own parameters when they take a result in which they were
        counted (alpha); 0: it replaces them."""
        return 0.0

    @property
    def discards_overlap(self) -> bool:
        """Of what the ranks did between a contribution and the result in which it was counted,
        nothing is left: its samples are drawn again."""
        return not self.mixing

    def fragments_of(self, parameters: Sequence[Parameter]) -> tuple[int, ...]:
        """The fragment of each parameter of the model; they are numbered from 0. Raises ConfigError
        when this model cannot be divided like that."""
        return (0,) * len(parameters)

    # What is made of it ---------------------------------------------------------------------

    def weight(self, contributor: Contributor) -> int:
        """Of its contribution, positive, as it says itself; only the ratios count."""
        return contributor.tokens

    def weights(self, contributors: Sequence[Contributor]) -> list[int]:
        """Of each contribution in the mean, none beyond the limit. The median is that of the
        weights that are not zero; of an even number it is the lower one in the middle."""
        found = [self.weight(each) for each in contributors]
        counting = sorted(weight for weight in found if weight)
        if not self.weight_max or not counting:
            return found
        limit = self.weight_max * counting[(len(counting) - 1) // 2]
        return [weight if weight <= limit else int(limit) for weight in found]

    @property
    def aggregate_grain(self) -> int:
        """Parts are cut at its multiples: what `combine` works on begins at one."""
        return NORM_ELEMENTS if self.needs_norms else grain_of(self.aggregate)

    def by_direction(self, tensor: str) -> bool:
        """Of a method that needs norms: is it the directions of this tensor's contributions that
        are averaged, and not the contributions?"""
        return False

    def combine(
        self,
        contributions: Sequence[F32],
        contributors: Sequence[Contributor],
        out: F32,
        room: Room,
    ) -> None:
        """Write what a piece of these contributions makes, in this order: the same bits wherever
        pieces are cut. Raises WeightsError when there is nothing to average."""
        match self.aggregate:
            case "mean":
                operations.weighted_mean(contributions, self.weights(contributors), out)
            case "trimmed_mean":
                trimmed = trimmed_count(len(contributions), self.trimmed_share)
                operations.trimmed_mean(contributions, trimmed, out)
            case "clipped_mean":
                clipped_mean(contributions, self.weights(contributors), out)
            case "centred_clipping":
                centred_clipping(contributions, self.weights(contributors), out, room)

    @property
    def trims(self) -> bool:
        """Whether a contribution that is not finite may leave no trace in what is made of it."""
        return self.aggregate == "trimmed_mean"

    @property
    @abstractmethod
    def state_arrays(self) -> tuple[str, ...]:
        """The fp32 arrays of a fragment's size that the daemon keeps, in the digest's order:
        "outer", and "momentum" if the outer step has one."""
        ...

    @abstractmethod
    def outer_step(
        self, outer_P: F32, momentum_P: F32, mean_P: F32, next_outer_P: F32, next_momentum_P: F32
    ) -> None:
        """Write to the last two what one round makes of the first two: the same bits everywhere.
        Both momenta are empty if `state_arrays` names none.

        `mean_P` is the decoded mean of pseudo-gradients (outer minus local), or of the parameters
        themselves where outer ones differ. Nothing else changes,
        so that it can be made before the round is known to be committed; then it is made once more
        for the momentum, and writes the next one in its place. Elementwise: a piece gives the bits
        of the whole.
        """
        ...


def check_fragments(inner_steps: int, fragments: int, overlap_steps: int) -> None:
    """Raise ConfigError for fragments that cannot be contributed once in each of so many steps, and
    taken before the next time, with the nearest that can."""
    if fragments <= 0:
        raise ConfigError(f"{TABLE}.fragments must be positive, got {fragments}")
    if overlap_steps < 0:
        raise ConfigError(f"{TABLE}.overlap_steps must not be negative, got {overlap_steps}")
    most = min(inner_steps, FRAGMENTS_MAX)
    if fragments > most:
        raise ConfigError(
            f"{TABLE}.fragments ({fragments}) must be at most {most}: a run has no more than "
            f"{FRAGMENTS_MAX}, and after one of the inner_steps ({inner_steps}) one is contributed"
        )
    if overlap_steps >= inner_steps:
        raise ConfigError(
            f"{TABLE}.overlap_steps ({overlap_steps}) must be below inner_steps ({inner_steps}), "
            "because a fragment's result is taken before it is contributed again: at most "
            f"{inner_steps - 1}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMethod(ABC):
    """A per-step method: nodes agree on every step of the model, and not on rounds of many."""

    name: str
    commit_every_steps: int = 32
    """So many steps between two commits; a lost node takes back no more."""
    snapshot_every_steps: int = 128
    """So many steps between two copies of the state, which each node keeps for who comes later,
    with all payloads since; a multiple of commit_every_steps."""

    def __post_init__(self) -> None:
        check_values(TABLE, self, positive=("commit_every_steps", "snapshot_every_steps"))
        if self.snapshot_every_steps % self.commit_every_steps:
            raise ConfigError(
                f"{TABLE}.snapshot_every_steps ({self.snapshot_every_steps}) must be a multiple "
                f"of commit_every_steps ({self.commit_every_steps}): only a committed state is kept"
            )

    @abstractmethod
    def exchange(self, parameters: Sequence[Parameter], *, seed: int) -> StepExchange:
        """What daemons make of what ranks write, for a model with these parameters, in the order of
        its layout. `seed`: the run's."""
        ...

    @property
    @abstractmethod
    def state_arrays(self) -> tuple[str, ...]:
        """The fp32 arrays of the model's size that are the run's state, in the order in which they
        lie one behind the other."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NesterovMethod(RoundMethod):
    """The outer step is Nesterov SGD, as DiLoCo has it."""

    outer_lr: float = 0.7
    """Learning rate of the outer SGD."""
    outer_momentum: float = 0.5
    """Nesterov momentum of the outer SGD. In short runs 0.5 does better than DiLoCo's 0.9."""
    momentum_clip: float = 0.0
    """No element of that momentum grows beyond so much (CO2, arXiv:2401.16265: against what adds up
    of results that come late); 0: as far as it does."""

    def __post_init__(self) -> None:
        RoundMethod.__post_init__(self)  # super() knows no class that has slots made for it.
        check_values(TABLE, self, positive=("outer_lr",), not_negative=("momentum_clip",))
        if not 0 <= self.outer_momentum < 1:
            got = self.outer_momentum
            raise ConfigError(f"{TABLE}.outer_momentum must be in [0, 1), got {got}")
        if self.momentum_clip and not self.outer_momentum:
            raise ConfigError(
                f"{TABLE}.momentum_clip is {self.momentum_clip}, but with {TABLE}.outer_momentum = "
                "0 there is no momentum: leave it out"
            )

    @property
    def state_arrays(self) -> tuple[str, ...]:
        # Without momentum there is none to keep, send to joiners and write to checkpoints.
        return ("outer", "momentum") if self.outer_momentum else ("outer",)

    def outer_step(
        self, outer_P: F32, momentum_P: F32, mean_P: F32, next_outer_P: F32, next_momentum_P: F32
    ) -> None:
        if not self.outer_momentum:
            descent(outer_P, mean_P, next_outer_P, lr=self.outer_lr)
            return
        nesterov_step(
            outer_P,
            mean_P,
            momentum_P,
            next_outer_P,
            next_momentum_P,
            lr=self.outer_lr,
            beta=self.outer_momentum,
            clip=self.momentum_clip,
        )
