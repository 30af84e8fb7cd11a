"""Chooses the fragment to which the ranks contribute at their next boundary.

All peers take the fragments in the same order, each from its own position. So a peer that joins in
the middle, or missed a round, needs neither a clock nor step numbers of others, and no two peers
wait for each other's rounds. Must NOT decide when a boundary is (the method).
"""

from collections.abc import Collection, Sequence
from typing import Protocol


class FragmentSchedule(Protocol):
    """The rounds of one fragment, as `LocalWork` implements them."""

    @property
    def next_round(self) -> int:
        """The round to which the ranks may contribute next."""
        ...


def next_fragment(rounds: Sequence[FragmentSchedule], left: Collection[int]) -> int:
    """The fragment of `left` that is furthest back. Fragments outside `left` had their last result,
    or the ranks wait for one.

    Within a round the order is 1, 2, ..., 0: the anchor is the last one, so that samples are
    accounted for until the end.
    """
    assert left, "a boundary after the last result"
    return min(left, key=lambda f: (rounds[f].next_round, f == 0, f))
