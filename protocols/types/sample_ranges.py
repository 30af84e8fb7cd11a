"""Sets of sample numbers, as sorted ranges that do not touch.

The samples of a run are numbered 0, 1, 2, ... without an end. Sample n is the window at position `n
% windows` of the permutation of pass `n // windows` (lowcomm/data/batches.py), so a set of numbers
is independent of passes and of the size of the data. The arithmetic is exact. Must NOT know which
peer holds a set (state/sample_ledger.py).
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

from protocols.types.frozen import record
from protocols.types.ids import PeerId

RANGES_MAX = 64
"""Ranges in one grant, and in the samples of one contribution: both travel in messages."""
REMAINING_MAX = 8192
"""Ranges of a whole ledger in one message: a fifth of the ranges that fit into one."""


@record
class SampleRange:
    """The samples `start` to `stop - 1`."""

    start: int
    stop: int


Samples = tuple[SampleRange, ...]
"""Sorted; between two ranges there is a gap, so that equal sets are equal tuples."""


@record
class Grant:
    """Samples that the leader leases to one peer."""

    peer: PeerId
    samples: Samples


@record
class Remaining:
    """How far a run is in its data: all samples below `frontier` are committed, except
    `samples`."""

    frontier: int = 0
    samples: Samples = ()


START = attrgetter("start")
"""The sort key of ranges for `merged`."""
ALL_REMAIN = Remaining()
"""A run that has committed nothing."""


def well_formed(samples: Samples) -> bool:
    """Are the ranges sorted, not empty, and apart? Every function here expects and returns such
    sets; a set that another peer sent must be checked first."""
    last = -1
    for one in samples:
        if not last < one.start < one.stop:
            return False
        last = one.stop
    return True


def is_sound(remaining: Remaining) -> bool:
    """Can a ledger be in this state? Sets of other peers must be checked first."""
    samples = remaining.samples
    return well_formed(samples) and (not samples or samples[-1].stop <= remaining.frontier)


def count(samples: Samples) -> int:
    total = 0
    for one in samples:
        total += one.stop - one.start
    return total


def union(one: Samples, other: Samples) -> Samples:
    """The samples in either set."""
    if not (one and other):
        return one or other
    if len(one) == len(other) == 1 and one[0].stop == other[0].start:
        return (SampleRange(one[0].start, other[0].stop),)  # The usual case: adjacent ranges.
    return union_of((one, other))


def union_of(sets: Iterable[Samples]) -> Samples:
    """The samples in any of the sets. Sorts once, whatever their number."""
    return merged(sorted(chain.from_iterable(sets), key=START))


def merged(ranges: Sequence[SampleRange]) -> Samples:
    """The set of ranges that are sorted by `start` and may overlap or touch."""
    made: list[SampleRange] = []
    for item in ranges:
        if made and item.start <= made[-1].stop:
            made[-1] = SampleRange(made[-1].start, max(made[-1].stop, item.stop))
        else:
            made.append(item)
    return tuple(made)


def subtract(one: Samples, other: Samples) -> Samples:
    """The samples in the first set and not in the second."""
    if not (one and other) or one[-1].stop <= other[0].start or other[-1].stop <= one[0].start:
        return one
    if len(one) == len(other) == 1:  # The usual case: a Commit takes samples of one held range.
        (held,), (gone,) = one, other
        before = (SampleRange(held.start, gone.start),) if held.start < gone.start else ()
        return (*before, SampleRange(gone.stop, held.stop)) if gone.stop < held.stop else before
    made: list[SampleRange] = []
    place = 0
    for item in one:
        start = item.start
        while place < len(other) and other[place].stop <= start:
            place += 1
        at = place  # The next item may begin inside this range of `other`.
        while at < len(other) and other[at].start < item.stop:
            if start < other[at].start:
                made.append(SampleRange(start, other[at].start))
            start = other[at].stop
            at += 1
        if start == item.start:
            made.append(item)
        elif start < item.stop:
            made.append(SampleRange(start, item.stop))
    return tuple(made)


def intersection(one: Samples, other: Samples) -> Samples:
    """The samples in both sets."""
    return subtract(one, subtract(one, other))


def contains(one: Samples, other: Samples) -> bool:
    """Is the second set a part of the first?"""
    return not subtract(other, one)


def first(samples: Samples, wanted: int, *, ranges_max: int) -> Samples:
    """The lowest `wanted` samples, or fewer if the first `ranges_max` ranges have fewer."""
    made: list[SampleRange] = []
    for item in samples[:ranges_max]:
        if wanted <= 0:
            break
        stop = min(item.stop, item.start + wanted)
        made.append(SampleRange(item.start, stop))
        wanted -= stop - item.start
    return tuple(made)
