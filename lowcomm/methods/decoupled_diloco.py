"""Decoupled DiLoCo (arXiv:2604.21428): small fragments, one after the other, with the nodes at
hand.

In the paper a syncer asks all learners for a fragment, waits for a quorum and then for a grace
window. Here the protocol does that. Once `run.protocol.quorum` nodes (K) have contributed to a
round of a fragment, the other nodes are asked to contribute after their next inner step, and have
`run.protocol.round_grace_s` seconds for it; the round commits with the contributions that arrived.
So the fastest nodes set the pace. They wait for a slow node no longer than for one of its steps,
minus `overlap_steps` of their own. Two nodes must hold a result, however few contributed. Must NOT
import torch or another method.
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
from protocols.types import ConfigError, Contributor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoupledDiLoCoMethod(NesterovMethod):
    """See `lowcomm.methods.base.RoundMethod`."""

    name: Literal["decoupled_diloco"] = "decoupled_diloco"
    inner_steps: int = 24
    contribution_codec: ContributionCodec = "fp4"
    fragments: int = 24
    """The number of fragments of the model, of about the same size; each consists of whole tensors.
    With as many as inner_steps, one is contributed in each step."""
    overlap_steps: int = 2  # pyright: ignore[reportIncompatibleMethodOverride] - a key here.
    """Inner steps between a contribution and the use of its result (tau), below inner_steps;
    results of the fragments between are then still to come. The result replaces the ranks' own
    parameters. 0: the ranks wait for it."""
    averaged: tuple[str, ...] = ("embed",)
    """Tensors with one of these words in their names (embeddings) get the plain mean, because their
    rows are mostly about different tokens. Of the other tensors the directions are averaged, and
    the mean keeps their length."""

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
        """Assign the tensors, the largest first, each to the fragment that is smallest so far.
        Raises ConfigError if there are fewer tensors than fragments."""
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
        """Tokens times tokens per step: a node counts by how much it learned and how well, and a
        gradient of more tokens is a better one. Both are counted since a result last replaced the
        node's own parameters, as in the paper, and reported by the node; `weight_max` limits the
        weight."""
        return max(contributor.tokens * contributor.tokens // max(contributor.steps, 1), 1)

    def by_direction(self, tensor: str) -> bool:
        return not any(word in tensor for word in self.averaged)
