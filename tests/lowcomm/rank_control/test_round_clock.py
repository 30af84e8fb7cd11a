"""When a round that has a time is over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.rank_control.round_clock import RoundClock, fits


def steps_made(clock: RoundClock, step_s: float, *, start: float, before: int = 0) -> int:
    """Of ranks that had made `before` steps when the round began."""
    clock.begin_round(start, joins=False)
    made = 1
    while not clock.is_over(start + made * step_s, before + made):
        made += 1
    return made


def test_a_step_is_begun_if_it_ends_in_time() -> None:
    assert fits(9.0, 1.0, until=10.0)
    assert not fits(9.1, 1.0, until=10.0)


@pytest.mark.parametrize(("step_s", "steps"), [(1.0, 10), (2.0, 5), (3.0, 3), (9.0, 1), (40.0, 1)])
def test_each_node_makes_as_many_steps_as_fit_and_one_at_least(step_s: float, steps: int) -> None:
    clock = RoundClock(10.0)
    assert steps_made(clock, step_s, start=0.0) == steps
    assert steps_made(clock, step_s, start=1234.5, before=steps) == steps, "in each round anew"


@given(st.floats(1e-3, 1.0), st.floats(0, 1e6), st.integers(0, 10**6))
def test_a_node_is_never_done_a_step_of_its_own_too_early(
    step_s: float, start: float, before: int
) -> None:
    made = steps_made(RoundClock(1.0), step_s, start=start, before=before)
    assert made == 1 or made * step_s <= 1.0 + 1e-6
    assert (made + 1) * step_s > 1.0 - 1e-6


def test_a_step_that_took_longer_leaves_time_for_fewer() -> None:
    clock = RoundClock(10.0)
    clock.begin_round(0.0, joins=False)
    assert not clock.is_over(1.0, 1)
    assert not clock.is_over(4.0, 2), "2 s a step, until 6"
    assert not clock.is_over(7.5, 3), "2.5 s a step, until 10"
    assert clock.is_over(8.5, 4)


def test_without_a_time_the_steps_alone_count() -> None:
    clock = RoundClock(0.0)
    clock.begin_round(5.0, joins=False)
    assert not clock.is_over(1e9, 1)
    assert clock.may_be_early(5.0), "the ranks ask only when they may"


def test_who_joins_may_be_early_from_half_of_its_first_round_on() -> None:
    clock = RoundClock(10.0)
    clock.begin_round(100.0, joins=True)
    assert [clock.may_be_early(now) for now in (100.0, 104.9, 105.0, 109.0)] == [False] * 2 + [
        True
    ] * 2
    clock.begin_round(110.0, joins=False)
    assert not clock.may_be_early(119.0)
