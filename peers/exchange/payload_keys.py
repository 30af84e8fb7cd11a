"""Names of payloads: slices and results.

Must NOT decide whether one is wanted.
"""

from typing import NamedTuple

from protocols.messages import ContributionChunk, PieceChunk, ResultChunk
from protocols.types import Contributor, Stamp


class SliceKey(NamedTuple):
    """Names a slice: the bytes, whatever the attempt."""

    lineage: int
    """Rounds and views are numbered anew in each lineage."""
    fragment: int
    round: int
    view: int
    part: int
    contributor: Contributor

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        """Not needed any more once this round is committed."""
        return self.fragment == fragment and self.round <= round_

    def is_beside(self, other: "Key") -> bool:
        """Of the same round and view? All slices of one peer there are one fragment at most."""
        return isinstance(other, SliceKey) and self[:4] == other[:4]


class ResultKey(NamedTuple):
    """Names the result of one part in one attempt."""

    stamp: Stamp
    part: int

    @property
    def lineage(self) -> int:
        return self.stamp.lineage

    def ends_with(self, fragment: int, round_: int, *, released: bool) -> bool:
        """May be needed until this round is released."""
        return released and self.stamp.fragment == fragment and self.stamp.round <= round_

    def is_beside(self, other: "Key") -> bool:
        """Of the same attempt? All results there are one fragment."""
        return isinstance(other, ResultKey) and self.stamp == other.stamp


Key = SliceKey | ResultKey


def slice_key(stamp: Stamp, part: int, contributor: Contributor) -> SliceKey:
    return SliceKey(stamp.lineage, stamp.fragment, stamp.round, stamp.view, part, contributor)


def key_of(chunk: PieceChunk) -> Key:
    """The name of the payload of a chunk."""
    match chunk:
        case ContributionChunk():
            return slice_key(chunk.stamp, chunk.part, chunk.contributor)
        case ResultChunk():
            return ResultKey(chunk.stamp, chunk.part)
