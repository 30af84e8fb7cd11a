"""Which fragment the ranks contribute to at their next boundary.

All peers take the fragments in one order, each from where it stands itself. So a peer that comes
in the middle, or missed a round, needs no clock and no step number of others to fall in, and
nobody waits for a round whose contributor waits for a later one. Must NOT say when a boundary is:
that is the method's.
"""

from collections.abc import Collection, Sequence
from typing import Protocol


class Rounds(Protocol):
    """Of one fragment, as `protocols.rounds.fragment_rounds.FragmentRounds`."""

    @property
    def next_round(self) -> int:
        """What our ranks may contribute to next."""
        ...


def next_fragment(rounds: Sequence[Rounds], left: Collection[int]) -> int:
    """The one that is furthest back, of those `left`: the others have had their last result, or
    our ranks wait for one.

    Within a round fragments come in the order 1, 2, ..., 0: the anchor is the last, so that samples
    are accounted for until all is over.
    """
    assert left, "a boundary after the last result"
    return min(left, key=lambda f: (rounds[f].next_round, f == 0, f))
