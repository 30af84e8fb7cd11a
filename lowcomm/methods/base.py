"""The interface of a method, as the daemon sees it; a method object is the table `[run.method]`.

A method's file defines the contribution, when it is made, its codecs, and the outer step. Must NOT
import torch: the half that runs in the ranks is `lowcomm/training/round_methods.py` (rounds) and
`lowcomm/training/step_methods.py` (per step), for all methods.

Methods are pure: they hold the agreed configuration, never the state of a run.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lowcomm.codecs import codec
from lowcomm.codecs.codec import Codec
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
from protocols.types import FRAGMENTS_MAX, ConfigError, Contributor

TABLE = "run.method"
GATHER = "gather"
"""The value of `result_codec` that stands for no codec: contributions themselves are exchanged."""
GATHERED = ("2bit", "sign", "topk", "topk2bit", "powersgd")
"""Codecs that leave much out and take few bytes: the mean takes many times as much as the
contributions of a few peers."""
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
    """A parameter of the model, with its name in the layout."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMethod(ABC):
    """A method with rounds: each node trains by itself, and from time to time all nodes take an
    outer step together."""

    name: str
    inner_steps: int = 20
    """Inner steps between two outer steps of a fragment (H)."""
    contribution_codec: ContributionCodec = "fp32"
    """The codec of the pseudo-gradients that are sent to the owners of parts. docs/codecs.md has
    the loss of each codec."""
    result_codec: ResultCodec = "auto"
    """The codec of the mean that owners send back. If contributions use fp4, set a finer one: bf16
    or int8. `gather`: peers get all contributions instead of the mean. `auto`: gather for 2bit,
    sign, topk, topk2bit and powersgd, and with decoupled_diloco; else fp32."""
    feedback_decay: float = 1.0
    """The share of the residue that is added to the next contribution: all of it (1), less
    (SparseLoCo: 0.95), or nothing (0). The residue is the part of a contribution that 2bit, sign,
    topk, topk2bit and powersgd leave out."""
    aggregate: Aggregate = "mean"
    """The way to combine contributions, some of which may be wrong: their `mean`; a `trimmed_mean`,
    which leaves out the largest and smallest values of each element, and in which all contributions
    weigh the same; a `clipped_mean`, which scales each block of 4096 elements down to the median
    norm of the contributions; `centred_clipping`, which does that to the differences of the
    contributions from their median."""
    trimmed_share: float = 0.2
    """A trimmed mean leaves out at least this share of the contributions at each end."""
    weight_max: float = 10.0
    """The limit of a contribution's weight, as a multiple of the median weight. A node reports its
    own weight, so without a limit one wrong number lets that node alone determine a round; in a
    trimmed mean all weigh the same. Nodes of very different speeds may need more; 0: no limit."""
    qsr_alpha: float = 0.0
    """If not 0, rounds grow longer as the learning rate falls (the Quadratic Synchronization Rule,
    arXiv:2310.14423): a round has (qsr_alpha / learning rate)^2 inner steps, and no fewer than
    inner_steps. The run then has fewer rounds with as many inner steps in all. 0: every round has
    inner_steps."""
    round_s: float = 0.0
    """If not 0, a node contributes after this many seconds of training, or after inner_steps if
    that is sooner: in the same time each node makes as many steps as it can, and no node waits for
    a slower one. Set inner_steps to the number that the fastest node makes. 0: all nodes make
    inner_steps. Not with noloco."""

    waits_for_rounds: ClassVar[bool] = True
    """True if a round is of the whole model, and ranks wait for its result before they train on.
    Only then may rounds have different lengths."""
    replicas_equal: ClassVar[bool] = True
    """True if all nodes have the same outer state. If False, each node exchanges with one other
    node in a round (gossip). It then contributes its parameters, not a pseudo-gradient, because
    outer parameters differ between nodes."""
    carries: ClassVar[bool] = True
    """True if parameters that the ranks wrote move along if the outer parameters change before they
    are contributed."""
    answers: ClassVar[bool] = False
    """True if a node contributes after its next inner step when others wait for it, with the steps
    made by then. If False, the others wait until it has made all steps of the round."""
    needs_norms: ClassVar[bool] = False
    """True if combining contributions needs norms of whole tensors. Every peer then gets all
    contributions, and combines them at the commit (lowcomm/numerics/direction_means.py)."""

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
                f"{TABLE}.qsr_alpha and {TABLE}.round_s both set a round's length: leave out one"
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
                f'{TABLE}.result_codec is "{self.result_codec}", but {self.name} needs norms of '
                'whole tensors, so owners of parts cannot sum: leave it out, or set "gather"'
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

    # Codecs ---------------------------------------------------------------------------------

    @property
    def codec(self) -> Codec:
        """The codec of pseudo-gradients."""
        return codec(self.contribution_codec)

    @property
    def mean_codec(self) -> Codec | None:
        """The codec of their mean. None: gather; every peer gets all contributions, and computes
        the mean by itself."""
        name = self.result_codec
        if name == "auto":
            gathers = self.needs_norms or self.contribution_codec in GATHERED
            name = GATHER if gathers else "fp32"
        return None if name == GATHER else codec(name)

    @property
    def feedback(self) -> float:
        """The share of a contribution's error that is added to the next one; 0: no error
        feedback."""
        return self.feedback_decay if self.contribution_codec in GATHERED else 0.0

    # Timing ---------------------------------------------------------------------------------

    @property
    def overlap_steps(self) -> int:
        """Inner steps between a contribution and the use of its result (tau); 0: the ranks wait for
        it."""
        return 0

    def in_flight(self, fragments: int) -> int:
        """The largest number of fragments, of `fragments`, that are contributed and have no result
        yet."""
        return min(fragments, 1 + self.overlap_steps // max(self.inner_steps // fragments, 1))

    @property
    def mixing(self) -> float:
        """The share of the ranks' own parameters that remains when they take a result in which they
        were counted (alpha); 0: the result replaces them."""
        return 0.0

    @property
    def discards_overlap(self) -> bool:
        """True if the ranks' steps between a contribution and the result in which it was counted
        are lost: their samples are drawn again."""
        return not self.mixing

    def fragments_of(self, parameters: Sequence[Parameter]) -> tuple[int, ...]:
        """The fragment of each parameter of the model, numbered from 0. Raises ConfigError if this
        model cannot be divided in this way."""
        return (0,) * len(parameters)

    # Combining, and the outer step ----------------------------------------------------------

    def weight(self, contributor: Contributor) -> int:
        """The weight of a contribution, positive, from its node's own report; only ratios count."""
        return contributor.tokens

    def weights(self, contributors: Sequence[Contributor]) -> list[int]:
        """The weight of each contribution in the mean, none beyond the limit. The median is that of
        the weights that are not zero; of an even number it is the lower one in the middle."""
        found = [self.weight(each) for each in contributors]
        counting = sorted(weight for weight in found if weight)
        if not self.weight_max or not counting:
            return found
        limit = self.weight_max * counting[(len(counting) - 1) // 2]
        return [weight if weight <= limit else int(limit) for weight in found]

    @property
    def aggregate_grain(self) -> int:
        """Parts are cut at multiples of this number of elements, because `combine` needs pieces
        that begin at one."""
        return NORM_ELEMENTS if self.needs_norms else grain_of(self.aggregate)

    def by_direction(self, tensor: str) -> bool:
        """True if the directions of this tensor's contributions are averaged, not the
        contributions. Only for a method that needs norms."""
        return False

    def combine(
        self,
        contributions: Sequence[F32],
        contributors: Sequence[Contributor],
        out: F32,
        room: Room,
    ) -> None:
        """Write the aggregate of one piece of the contributions to `out`, fp32 [P], in the given
        order: the same bits wherever pieces are cut. `room` gives scratch. Raises WeightsError if
        there is nothing to average."""
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
        """True if a contribution that is not finite may leave no trace in the aggregate."""
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
        """Write the next outer parameters and momentum to the last two arrays: the same bits on
        every peer. Both momenta are empty if `state_arrays` names none.

        `mean_P` is the decoded mean of pseudo-gradients (outer minus local), or of the parameters
        themselves if outer parameters differ between nodes. Nothing else changes, so the step can
        be made before the round is known to be committed. After the commit it is made once more for
        the momentum, which then takes the place of the old one. Elementwise: a piece gives the bits
        of the whole.
        """
        ...


def check_fragments(inner_steps: int, fragments: int, overlap_steps: int) -> None:
    """Raise ConfigError, with the nearest possible value, unless each fragment can be contributed
    once in `inner_steps` steps, and its result taken before the next time."""
    if fragments <= 0:
        raise ConfigError(f"{TABLE}.fragments must be positive, got {fragments}")
    if overlap_steps < 0:
        raise ConfigError(f"{TABLE}.overlap_steps must not be negative, got {overlap_steps}")
    most = min(inner_steps, FRAGMENTS_MAX)
    if fragments > most:
        raise ConfigError(
            f"{TABLE}.fragments ({fragments}) must be at most {most}: a run has at most "
            f"{FRAGMENTS_MAX}, and after each of the inner_steps ({inner_steps}) at most one is "
            "contributed"
        )
    if overlap_steps >= inner_steps:
        raise ConfigError(
            f"{TABLE}.overlap_steps ({overlap_steps}) must be below inner_steps ({inner_steps}), "
            "because a fragment's result is taken before it is contributed again: at most "
            f"{inner_steps - 1}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMethod(ABC):
    """A per-step method: nodes agree on every step of the model, not on rounds of many steps."""

    name: str
    commit_every_steps: int = 32
    """Steps between two commits. Later steps may have to be made again if nodes are lost. A node
    makes at most four times this many beyond the last commit, or beyond the begin of a view."""
    snapshot_every_steps: int = 128
    """Steps between two copies of the state, a multiple of commit_every_steps. Each node keeps the
    copy for joiners, with all payloads since."""

    def __post_init__(self) -> None:
        check_values(TABLE, self, positive=("commit_every_steps", "snapshot_every_steps"))
        if self.snapshot_every_steps % self.commit_every_steps:
            raise ConfigError(
                f"{TABLE}.snapshot_every_steps ({self.snapshot_every_steps}) must be a multiple "
                f"of commit_every_steps ({self.commit_every_steps}): only a committed state is kept"
            )

    @abstractmethod
    def make_exchange(self, parameters: Sequence[Parameter], *, seed: int) -> StepExchange:
        """The exchange of payloads between the daemons, for a model with these parameters in layout
        order. `seed`: the run's."""
        ...

    @property
    @abstractmethod
    def state_arrays(self) -> tuple[str, ...]:
        """The fp32 arrays of the model's size that are the run's state, in the order in which they
        are stored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NesterovMethod(RoundMethod):
    """A method of rounds with Nesterov SGD as its outer step, as in DiLoCo."""

    outer_lr: float = 0.7
    """Learning rate of the outer SGD."""
    outer_momentum: float = 0.5
    """Nesterov momentum of the outer SGD. In short runs 0.5 does better than DiLoCo's 0.9."""
    momentum_clip: float = 0.0
    """The largest magnitude of an element of that momentum (CO2, arXiv:2401.16265: it limits the
    accumulation of late results); 0: no limit."""

    def __post_init__(self) -> None:
        RoundMethod.__post_init__(self)  # super() fails: slots=True makes a new class.
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
        # Without momentum there is no array to keep, send to joiners and write to checkpoints.
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
