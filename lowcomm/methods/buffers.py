"""The rounds of a model's buffers: nodes average floating ones, and take integers of one node.

Buffers (the statistics of BatchNorm) are a fragment of their own, the last one, whatever the run's
method is. Each node contributes its values themselves, exact and without error feedback, together
with fragment 0; all of them reach every peer, since a mean would hide the integers of the node that
counts. Floating buffers become the mean, with the method's weights, or a trimmed mean if the method
distrusts contributions. Integer buffers become those of the contributor with the most tokens; of
several, of the one with the lowest id. They travel as fp32, exact up to 2**24. Must NOT import
torch or another method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lowcomm.methods.base import GATHER, ContributionCodec, ResultCodec, RoundMethod
from lowcomm.numerics import operations
from lowcomm.numerics.operations import F32
from lowcomm.numerics.robust_means import trimmed_count
from protocols.types import Contributor, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferMethod(RoundMethod):
    """The method of the fragment of buffers, in a run of the method `of`. It is no method of a run.
    See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["buffers"] = "buffers"
    contribution_codec: ContributionCodec = "fp32"
    result_codec: ResultCodec = GATHER
    of: RoundMethod
    counters: tuple[slice, ...] = ()
    """The places of integer buffers in the fragment, in elements, ascending."""

    replicas_equal: ClassVar[bool] = False
    carries: ClassVar[bool] = False
    state_arrays = (  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
        "outer",
        "momentum",
    )
    """A checkpoint has the same arrays of all tensors, so these are the method's of the run. The
    momentum of buffers stays zero."""

    @property
    def feedback(self) -> float:
        """That of the run's method, so that all fragments have a residue or none. Nothing is ever
        left out of fp32, so the residue of buffers stays zero."""
        return self.of.feedback

    def weight(self, contributor: Contributor) -> int:
        return self.of.weight(contributor)

    def weights(self, contributors: Sequence[Contributor]) -> list[int]:
        return self.of.weights(contributors)

    def combine_at(
        self, at: int, contributions: Sequence[F32], contributors: Sequence[Contributor], out: F32
    ) -> None:
        """Write the next values of one piece, which begins at the fragment's element `at`, to
        `out`, fp32 [P]. Raises WeightsError if there is nothing to average."""
        if self.of.aggregate == "mean":
            operations.weighted_mean(contributions, self.weights(contributors), out)
        else:
            trimmed = trimmed_count(len(contributions), self.of.trimmed_share)
            operations.trimmed_mean(contributions, trimmed, out)
        chosen = min(
            range(len(contributors)),
            key=lambda number: (-contributors[number].tokens, contributors[number].peer),
        )
        for place in self.counters:
            here = slice(max(place.start - at, 0), max(place.stop - at, 0))
            out[here] = contributions[chosen][here]

    def outer_step(
        self, outer_P: F32, momentum_P: F32, mean_P: F32, next_outer_P: F32, next_momentum_P: F32
    ) -> None:
        next_outer_P[:] = mean_P
        next_momentum_P[:] = 0


def buffers_fragment(layout: Sequence[TensorSpec]) -> int | None:
    """The fragment of the buffers; None if the layout has none."""
    return next((each.fragment for each in layout if each.kind != "parameter"), None)


def methods_of(method: RoundMethod, layout: Sequence[TensorSpec]) -> list[RoundMethod]:
    """The method of each fragment, in a run of this method."""
    fragments = 1 + max(each.fragment for each in layout)
    buffers = buffers_fragment(layout)
    counters = tuple(
        slice(each.offset, each.offset + each.elements) for each in layout if each.kind == "counter"
    )
    apart = BufferMethod(of=method, counters=counters)
    return [apart if fragment == buffers else method for fragment in range(fragments)]


def in_flight(method: RoundMethod, layout: Sequence[TensorSpec]) -> int:
    """The largest number of fragments that are contributed and have no result yet. Buffers are so
    together with fragment 0."""
    fragments = 1 + max(each.fragment for each in layout)
    if buffers_fragment(layout) is None:
        return min(method.in_flight(fragments), fragments)
    return min(method.in_flight(fragments - 1) + 1, fragments)
