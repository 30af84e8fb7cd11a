"""Names of payloads: which slice, which result.

Must NOT say whether one is wanted.
"""

from typing import NamedTuple

from protocols.ids import Contributor, Stamp
from protocols.messages import ContributionChunk, PieceChunk, ResultChunk


class SliceKey(NamedTuple):
    """Not the attempt, but which bytes."""

    fragment: int
    round: int
    view: int
    part: int
    contributor: Contributor

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        """Nobody needs it once this round is committed."""
        return self.fragment == fragment and self.round <= round_


class ResultKey(NamedTuple):
    """Of one part, in one attempt."""

    stamp: Stamp
    part: int

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        """Somebody may need it until this round is released."""
        return released and self.stamp.fragment == fragment and self.stamp.round <= round_


Key = SliceKey | ResultKey


def slice_key(stamp: Stamp, part: int, contributor: Contributor) -> SliceKey:
    return SliceKey(stamp.fragment, stamp.round, stamp.view, part, contributor)


def key_of(chunk: PieceChunk) -> Key:
    """Which payload it is a piece of."""
    match chunk:
        case ContributionChunk():
            return slice_key(chunk.stamp, chunk.part, chunk.contributor)
        case ResultChunk():
            return ResultKey(chunk.stamp, chunk.part)
