"""Who makes how many steps, and who is away when."""

import pytest

from benchmarks.comparing.virtual_time import Clock, NodeChange, changes, clocks


def test_equal_nodes_make_one_step_each_unit_and_never_wait() -> None:
    for clock in clocks(4, unequal=False, seed=0):
        for time in range(1, 1001):
            assert clock.steps_until(time) == 1
            clock.meet(time)
        assert clock.waited == 0


def test_unequal_nodes_make_together_as_many_steps_and_hardly_wait() -> None:
    made = [0] * 4
    found = clocks(4, unequal=True, seed=1)
    for time in range(1, 421):
        for node, clock in enumerate(found):
            made[node] += clock.steps_until(time)
            if time % 30 == 0:
                clock.meet(time)
    assert sum(made) == pytest.approx(4 * 420, rel=0.03)
    assert [count / made[0] for count in made] == pytest.approx([1, 1, 2, 4], rel=0.06)
    assert all(0 < clock.waited / 420 < 0.05 for clock in found)


def test_a_step_that_would_end_after_the_meeting_is_not_begun() -> None:
    clock = Clock(0.4, jitter=0.0, seed=0)
    assert clock.steps_until(6.0) == 2
    clock.meet(6.0)
    assert clock.waited == pytest.approx(1.0)
    assert clock.steps_until(8.4) == 0
    assert clock.steps_until(8.5) == 1


def test_a_step_goes_on_past_a_meeting_for_which_nobody_waits() -> None:
    clock = Clock(0.4, jitter=0.0, seed=0)
    assert [clock.steps_until(time) for time in (6.0, 7.5)] == [2, 1]


def test_in_thirty_rounds_one_is_lost_and_one_joins() -> None:
    assert changes(4, rounds=14, inner_steps=30) == [
        NodeChange(135.0, 3, joins=False),
        NodeChange(180.0, 3, joins=True),
    ]
    found = changes(4, rounds=60, inner_steps=10)
    assert [(each.time, each.node, each.joins) for each in found] == [
        (105.0, 3, False),
        (120.0, 3, True),
        (405.0, 2, False),
        (420.0, 2, True),
    ]
    assert changes(4, rounds=2, inner_steps=10) == [NodeChange(5.0, 3, joins=False)]
