"""Sets of samples: which numbers of the run's endless sequence, as sorted ranges that do not touch.

The samples of a run are numbered 0, 1, 2, ... without an end: sample n is the window that the
permutation of pass `n // windows` has at `n % windows` (lowcomm/data/batches.py), so that a set of
numbers needs to know nothing of passes, nor of how large the data is. Exact integer arithmetic.
Must NOT know who holds a set (state/sample_ledger.py).
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

from protocols.types.frozen import record
from protocols.types.ids import PeerId

RANGES_MAX = 64
"""In one grant, and in what one contribution covers: they travel in messages."""
REMAINING_MAX = 8192
"""Ranges of a whole ledger in one message: a fifth of what fits."""


@record
class SampleRange:
    """The samples `start` to `stop - 1`."""

    start: int
    stop: int


Samples = tuple[SampleRange, ...]
"""Sorted; between two ranges there is a gap, so that equal sets are equal tuples."""


@record
class Grant:
    """What one peer gets."""

    peer: PeerId
    samples: Samples


@record
class Remaining:
    """Where a run is in its data: all below `frontier` is committed, but for these."""

    frontier: int = 0
    samples: Samples = ()


START = attrgetter("start")
"""Sorted by it, ranges are in the order that `merged` needs."""
ALL_REMAIN = Remaining()
"""At the beginning."""


def well_formed(samples: Samples) -> bool:
    """Is this what every function here expects and returns? What comes from others may not be."""
    last = -1
    for one in samples:
        if not last < one.start < one.stop:
            return False
        last = one.stop
    return True


def is_sound(remaining: Remaining) -> bool:
    """Can a ledger be in this state?"""
    samples = remaining.samples
    return well_formed(samples) and (not samples or samples[-1].stop <= remaining.frontier)


def count(samples: Samples) -> int:
    total = 0
    for one in samples:
        total += one.stop - one.start
    return total


def union(one: Samples, other: Samples) -> Samples:
    """What is in either."""
    if not (one and other):
        return one or other
    if len(one) == len(other) == 1 and one[0].stop == other[0].start:
        return (SampleRange(one[0].start, other[0].stop),)  # Mostly: what comes next.
    return union_of((one, other))


def union_of(sets: Iterable[Samples]) -> Samples:
    """What is in any: sorted once, however many there are."""
    return merged(sorted(chain.from_iterable(sets), key=START))


def merged(ranges: Sequence[SampleRange]) -> Samples:
    """Sorted ranges that may overlap or touch, as a set."""
    made: list[SampleRange] = []
    for item in ranges:
        if made and item.start <= made[-1].stop:
            made[-1] = SampleRange(made[-1].start, max(made[-1].stop, item.stop))
        else:
            made.append(item)
    return tuple(made)


def subtract(one: Samples, other: Samples) -> Samples:
    """What is in the first, and not in the second."""
    if not (one and other) or one[-1].stop <= other[0].start or other[-1].stop <= one[0].start:
        return one
    if len(one) == len(other) == 1:  # Mostly: a Commit takes from each what it holds.
        (held,), (gone,) = one, other
        before = (SampleRange(held.start, gone.start),) if held.start < gone.start else ()
        return (*before, SampleRange(gone.stop, held.stop)) if gone.stop < held.stop else before
    made: list[SampleRange] = []
    place = 0
    for item in one:
        start = item.start
        while place < len(other) and other[place].stop <= start:
            place += 1
        at = place  # The next of ours may begin inside the last of theirs.
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
    """What is in both."""
    return subtract(one, subtract(one, other))


def contains(one: Samples, other: Samples) -> bool:
    """Is all of the second in the first?"""
    return not subtract(other, one)


def first(samples: Samples, wanted: int, *, ranges_max: int) -> Samples:
    """The lowest `wanted` samples, or as many as there are in that many ranges."""
    made: list[SampleRange] = []
    for item in samples[:ranges_max]:
        if wanted <= 0:
            break
        stop = min(item.stop, item.start + wanted)
        made.append(SampleRange(item.start, stop))
        wanted -= stop - item.start
    return tuple(made)
