"""Ranges of samples do what sets of numbers do, exactly."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocols.types import sample_ranges as s
from protocols.types.sample_ranges import SampleRange, Samples

NUMBERS = st.frozensets(st.integers(0, 60), max_size=40)


def of(numbers: frozenset[int] | set[int]) -> Samples:
    return s.merged([SampleRange(number, number + 1) for number in sorted(numbers)])


def numbers_in(samples: Samples) -> set[int]:
    return {number for one in samples for number in range(one.start, one.stop)}


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


@given(NUMBERS)
def test_a_set_of_numbers_has_one_form(numbers: frozenset[int]) -> None:
    made = of(numbers)
    assert s.well_formed(made)
    assert numbers_in(made) == numbers
    assert s.count(made) == len(numbers)


@given(NUMBERS, NUMBERS)
def test_sets_are_added_and_taken_away(one: frozenset[int], other: frozenset[int]) -> None:
    ours, theirs = of(one), of(other)
    assert s.union(ours, theirs) == of(one | other)
    assert s.subtract(ours, theirs) == of(one - other)
    assert s.intersection(ours, theirs) == of(one & other)
    assert s.contains(ours, theirs) == (other <= one)


@example(frozenset(range(4)), 2, 12)
@given(NUMBERS, st.integers(0, 50), st.integers(0, 12))
def test_the_first_ones(numbers: frozenset[int], wanted: int, ranges_max: int) -> None:
    made = of(numbers)
    taken = s.first(made, wanted, ranges_max=ranges_max)
    allowed = sorted(numbers_in(made[:ranges_max]))
    assert numbers_in(taken) == set(allowed[:wanted])
    assert s.well_formed(taken)
    assert len(taken) <= ranges_max


def test_numbers_may_be_as_large_as_the_wire_allows() -> None:
    top = (1 << 63) - 1
    assert s.subtract(ranges((0, top)), ranges((5, 6))) == ranges((0, 5), (6, top))
    assert s.count(ranges((0, top))) == top


@pytest.mark.parametrize(
    "bad",
    [((3, 3),), ((4, 3),), ((-1, 3),), ((0, 3), (3, 5)), ((0, 3), (2, 5)), ((4, 5), (0, 1))],
)
def test_what_is_no_set_is_seen(bad: tuple[tuple[int, int], ...]) -> None:
    assert not s.well_formed(ranges(*bad))


def test_nothing_is_a_set() -> None:
    assert s.well_formed(())
    assert s.contains((), ())
    assert not s.contains((), ranges((1, 2)))
