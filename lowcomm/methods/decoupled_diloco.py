"""Decoupled DiLoCo (arXiv:2604.21428): small fragments, one after the other, with whoever is there.

The paper's syncer, which asks all learners for a fragment, waits for a quorum and then for a grace
window, is the protocol here: once `run.protocol.quorum` nodes (K) have contributed to a round of a
fragment, the others are asked to contribute what they have after their next inner step, and have
`run.protocol.round_grace_s` for it; it commits with those that came. So the fastest nodes set the
pace, and wait for a slow one no longer than for one of its steps, less `overlap_steps` of their
own. Two must hold a result, however few contributed. Must NOT import torch or another method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lowcomm.methods.base import (
    TABLE,
    ContributionCodec,
    NesterovMethod,
    Parameter,
    check_fragments,
)
from protocols.types.errors import ConfigError
from protocols.types.ids import Contributor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoupledDiLoCo(NesterovMethod):
    """See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["decoupled_diloco"] = "decoupled_diloco"
    inner_steps: int = 24
    contribution_codec: ContributionCodec = "fp4"
    fragments: int = 24
    """Of the model, of about the same size; each is of whole tensors. With as many as inner_steps,
    one is contributed in each."""
    overlap_steps: int = 2  # pyright: ignore[reportIncompatibleMethodOverride] - a key here.
    """A result is taken so many inner steps after the contribution (tau), below inner_steps, with
    those of the fragments between still to come; it replaces the ranks' own parameters. 0: the
    ranks wait for it."""
    averaged: tuple[str, ...] = ("embed",)
    """Tensors whose names contain one of these (embeddings) are averaged, as their rows are mostly
    about different tokens. Of the others it is the directions, and the mean keeps their length."""

    waits_for_rounds = False
    answers = True
    needs_norms = True

    def __post_init__(self) -> None:
        NesterovMethod.__post_init__(self)
        check_fragments(self.inner_steps, self.fragments, self.overlap_steps)
        if self.aggregate != "mean":
            raise ConfigError(
                f'{TABLE}.aggregate is "{self.aggregate}", but this method has a mean of its own, '
                "of directions: leave it out"
            )

    def fragments_of(self, parameters: Sequence[Parameter]) -> tuple[int, ...]:
        """The largest first, each into the fragment that is smallest so far."""
        if self.fragments > len(parameters):
            raise ConfigError(
                f"{TABLE}.fragments is {self.fragments}, but this model has {len(parameters)} "
                f"tensors, and each is in one fragment: at most {len(parameters)}"
            )
        loads, found = [0] * self.fragments, [0] * len(parameters)
        by_size = sorted(range(len(parameters)), key=lambda at: -parameters[at].elements)
        for at in by_size:
            found[at] = min(range(self.fragments), key=lambda fragment: loads[fragment])
            loads[found[at]] += parameters[at].elements
        return tuple(found)

    def weight(self, contributor: Contributor) -> int:
        """Tokens times tokens a step, so that a node counts by how much it learned and how well: a
        gradient of more tokens is a better one. Both are counted since a result last replaced the
        node's own parameters, as in the paper, and are what it says; `weight_max` limits it."""
        return max(contributor.tokens * contributor.tokens // max(contributor.steps, 1), 1)

    def by_direction(self, tensor: str) -> bool:
        return not any(word in tensor for word in self.averaged)
