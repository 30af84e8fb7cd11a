"""When the ranks of a node contribute, and when they take results: events in, questions out."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.training.round_schedule import RoundSchedule

TOKENS = 7


def started(
    *, inner_steps: int = 8, fragments: int = 2, overlap_steps: int = 0, outer_steps: int = 100
) -> RoundSchedule:
    """Its ranks have got their first parameters."""
    made = RoundSchedule(
        inner_steps=inner_steps,
        fragments=fragments,
        overlap_steps=overlap_steps,
        outer_steps=outer_steps,
    )
    for fragment in range(fragments):
        assert made.awaited == fragment
        took(made, fragment, round_steps=inner_steps)
    assert made.awaited is None
    return made


def took(made: RoundSchedule, fragment: int, **said: Any) -> None:
    values: dict[str, Any] = {
        "version": 0,
        "anew": False,
        "finish": False,
        "inner_step": 0,
        "boundary_steps": 1000,
        "round_steps": 8,
    }
    made.took(fragment, **(values | said))


def count(made: RoundSchedule, steps: int = 1) -> None:
    for _ in range(steps):
        made.count(TOKENS)


@given(st.integers(1, 40), st.data())
def test_fragment_p_is_contributed_at_its_offset_in_every_round(steps: int, data: Any) -> None:
    fragments: int = data.draw(st.integers(1, steps))
    overlap: int = data.draw(st.integers(0, steps - 1))
    made = started(inner_steps=steps, fragments=fragments, overlap_steps=overlap)
    order = [*range(1, fragments), 0]
    offsets = [number * steps // fragments for number in range(fragments)]
    contributed = taken = 0
    most = 0  # In flight at once.
    last = steps + overlap  # The step up to which the node has samples.
    for t in range(1, 4 * steps + 1):
        count(made)
        while made.awaited is not None:
            assert made.awaited == order[taken % fragments]
            assert t > overlap
            last += steps * (made.awaited == 0)
            took(made, made.awaited, version=1 + taken // fragments, round_steps=steps)
            taken += 1
        if made.at_boundary:
            fragment = order[contributed % fragments]
            assert fragment in made.left
            assert fragment in made.choices(last - t), "the samples suffice for this order"
            assert (t - offsets[fragment]) % steps == 0
            since = steps if contributed >= fragments else t
            assert made.contribute(fragment) == (since, TOKENS * since)
            contributed += 1
            most = max(most, contributed - taken)
            assert (made.awaited == fragment) == (overlap == 0)
        else:
            assert all((t - offset) % steps for offset in offsets)
    assert contributed == 4 * fragments
    gaps = [after - before for before, after in pairwise([*offsets, steps])]
    assert (most > 1) == (overlap > min(gaps))


def test_a_result_is_taken_so_many_steps_after_the_contribution_and_not_earlier() -> None:
    made = started(inner_steps=9, fragments=2, overlap_steps=3)
    count(made, 4)
    made.contribute(1)
    for _ in range(2):
        count(made)
        assert made.awaited is None
    count(made)
    assert made.awaited == 1
    assert made.left == [0]


def test_work_that_was_thrown_away_has_no_weight_and_other_work_has() -> None:
    made = started(overlap_steps=2)
    for anew, left in ((False, 8), (True, 6)):
        count(made, 4)
        made.contribute(1)
        count(made, 2)
        took(made, 1, anew=anew)
        count(made, 2)
        made.contribute(0)
        count(made, 2)
        took(made, 0)
        count(made, 2)
        assert made.at_boundary
        assert made.contribute(1) == (left, TOKENS * left)
        count(made, 2)
        took(made, 1)
        count(made, 2)
        made.contribute(0)
        count(made, 2)
        took(made, 0)
        count(made, 2)


def test_a_fragment_in_flight_is_left_out_until_its_result_is_taken() -> None:
    made = started(inner_steps=8, fragments=4, overlap_steps=6)
    for fragment in (1, 2, 3):
        count(made, 2)
        made.contribute(fragment)
    count(made)
    assert made.left == [0]
    assert made.awaited is None
    count(made)
    assert made.awaited == 1
    took(made, 1, version=1)
    assert made.left == [0, 1]
    made.contribute(0)
    count(made, 2)
    assert made.awaited == 2
    took(made, 2, version=1)
    assert made.contribute(1) == (8, 8 * TOKENS), "all since its last contribution"


def test_who_came_in_the_middle_may_be_early_until_it_was_counted() -> None:
    made = RoundSchedule(inner_steps=8, fragments=1, overlap_steps=0, outer_steps=9)
    took(made, 0, version=3, boundary_steps=4)
    count(made, 3)
    assert not made.may_be_early
    count(made)
    assert made.may_be_early
    assert not made.at_boundary
    assert made.contribute(0) == (4, 4 * TOKENS)
    assert not made.may_be_early, "there is nothing left to contribute"
    took(made, 0, version=4, boundary_steps=8)
    count(made, 7)
    assert not made.may_be_early
    count(made)
    assert made.at_boundary


def test_after_the_last_contributions_all_results_are_due_at_once() -> None:
    made = started(overlap_steps=3, outer_steps=1)
    count(made, 4)
    made.contribute(1)
    count(made)
    assert made.awaited is None, "fragment 0 has still to be contributed"
    count(made, 2)
    took(made, 1, version=1, finish=True)
    count(made)
    assert made.left == [0]
    made.contribute(0)
    assert made.awaited == 0, "no step from now on is in any result"
    assert not made.finished
    took(made, 0, version=1, finish=True)
    assert made.finished
    assert made.awaited is None


def test_a_boundary_with_nothing_left_waits_for_a_result() -> None:
    """Only of who came early: its fragments are all under way."""
    made = RoundSchedule(inner_steps=8, fragments=2, overlap_steps=3, outer_steps=9)
    for fragment in (0, 1):
        took(made, fragment, boundary_steps=4)
    count(made, 5)
    made.contribute(1)
    made.contribute(0)
    count(made, 3)
    assert made.awaited == 0
    assert made.left == []


def test_steps_of_the_run_are_those_it_committed_and_ours_since() -> None:
    made = started(inner_steps=8, fragments=1, overlap_steps=2)
    count(made, 8)
    assert made.run_step == 8
    made.contribute(0)
    count(made, 2)
    assert made.run_step == 10
    took(made, 0, version=1, inner_step=8)
    assert made.run_step == 10, "the two steps since the contribution are in no result"
    count(made, 6)
    made.contribute(0)
    count(made, 2)
    took(made, 0, version=5, inner_step=40, anew=True)
    assert made.run_step == 40


def test_a_fragment_is_not_contributed_twice_without_a_result() -> None:
    made = started(overlap_steps=3)
    count(made, 4)
    made.contribute(1)
    with pytest.raises(AssertionError, match="its last result is still to come"):
        made.contribute(1)


def test_a_round_is_as_long_as_the_result_it_begins_with_says() -> None:
    made = started(inner_steps=4, fragments=1)
    lengths: list[int] = []
    for version, steps in enumerate((4, 9, 9, 2), 1):
        before = made.step
        while not made.at_boundary:
            count(made)
        lengths.append(made.step - before)
        made.contribute(0)
        took(made, 0, version=version, round_steps=steps)
    assert lengths == [4, 4, 9, 9]
    count(made, 1)
    assert not made.at_boundary
    count(made, 1)
    assert made.at_boundary


@pytest.mark.parametrize(("fragments", "overlap"), [(1, 0), (3, 0), (3, 2), (1, 8)])
def test_buffers_are_contributed_with_the_anchor_and_change_no_boundary(
    fragments: int, overlap: int
) -> None:
    """Fragment `fragments` has them."""
    plain = started(inner_steps=8, fragments=fragments, overlap_steps=overlap)
    made = RoundSchedule(
        inner_steps=8,
        fragments=fragments + 1,
        overlap_steps=overlap,
        outer_steps=9,
        has_buffers=True,
    )
    for fragment in range(fragments + 1):
        took(made, fragment)
    versions = [0] * (fragments + 1)
    given = 0
    for _ in range(4 * 8):
        for each in (plain, made):
            count(each)
            while (fragment := each.awaited) is not None:
                versions[fragment] += each is made
                took(each, fragment, version=versions[fragment])
        assert made.left == plain.left
        assert made.at_boundary == plain.at_boundary
        if made.at_boundary:
            chosen = min(made.left, key=lambda f: (versions[f], f == 0, f))
            group = made.together(chosen)
            assert group == ([fragments, 0] if chosen == 0 else [chosen])
            plain.contribute(chosen)
            for each in group:
                steps, _ = made.contribute(each)
                assert steps
            given += len(group)
    assert given >= 3 * (fragments + 1)


def test_buffers_that_are_behind_at_the_end_are_contributed_by_themselves() -> None:
    made = RoundSchedule(
        inner_steps=2, fragments=2, overlap_steps=0, outer_steps=1, has_buffers=True
    )
    for fragment in range(2):
        took(made, fragment, round_steps=2)
    count(made, 2)
    for fragment in made.together(0):
        made.contribute(fragment)
    took(made, 0, version=1, finish=True, round_steps=2)
    took(made, 1, round_steps=2)  # The round was rolled back.
    assert not made.finished
    count(made, 2)
    assert made.at_boundary
    assert made.left == made.together(1) == [1]
