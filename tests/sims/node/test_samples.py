"""Simulated ranks draw what is theirs, and results wait while it is too little."""

import pytest

from protocols.types.errors import LowcommError
from protocols.types.sample_ranges import SampleRange, Samples
from sims.node.samples import SimulatedLeases


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def step(sample_leases: SimulatedLeases, wanted: int) -> list[int]:
    drawn = sample_leases.draw(wanted)
    sample_leases.count_step()
    return drawn


def more_follow() -> bool:
    """The result is not the last one."""
    return False


def give(sample_leases: SimulatedLeases, *, anew: bool = False) -> None:
    """The next result of the anchor, once there is enough."""
    sample_leases.post(
        lambda: sample_leases.take(sample_leases.lease, anew=anew, last=False), more_follow
    )


def test_ranks_draw_the_lowest_and_say_it_once() -> None:
    sample_leases = SimulatedLeases(interval=4)
    sample_leases.leased(ranges((2, 4), (7, 20)))
    give(sample_leases)
    assert step(sample_leases, 3) == [2, 3, 7]
    assert sample_leases.contribute() == ranges((2, 4), (7, 8))
    assert sample_leases.contribute() == ()


def test_a_result_waits_until_there_is_enough() -> None:
    sample_leases, begun = SimulatedLeases(interval=4), list[str]()
    sample_leases.post(lambda: begun.append("now"), more_follow)
    sample_leases.leased(ranges((0, 3)))
    assert begun == []
    sample_leases.leased(ranges((0, 4)))
    sample_leases.leased(ranges((0, 9)))
    assert begun == ["now"]


def test_the_last_result_waits_for_nothing() -> None:
    sample_leases, begun = SimulatedLeases(interval=4), list[str]()
    sample_leases.post(lambda: begun.append("now"), lambda: True)
    assert begun == ["now"]


def test_what_the_anchor_had_last_feeds_other_fragments_to_their_end() -> None:
    sample_leases, needs_steps, begun = SimulatedLeases(interval=4), [True], list[str]()
    sample_leases.post(lambda: begun.append("now"), lambda: not needs_steps)
    assert begun == []
    needs_steps.clear()
    sample_leases.post_waiting()
    assert begun == ["now"]
    sample_leases.leased(ranges((0, 4)))
    sample_leases.take(sample_leases.lease, anew=True, last=True)
    assert [step(sample_leases, 3) for _ in range(2)] == [[0, 1, 2], [0, 1, 2]]


def test_ranks_that_are_gone_get_no_result_that_waits() -> None:
    sample_leases, begun = SimulatedLeases(interval=4), list[str]()
    sample_leases.post(lambda: begun.append("now"), more_follow)
    sample_leases.drop_all()
    sample_leases.leased(ranges((0, 9)))
    assert begun == []


def test_what_is_leased_meanwhile_is_drawn_after_the_next_result() -> None:
    sample_leases = SimulatedLeases(interval=4)
    sample_leases.leased(ranges((0, 4)))
    give(sample_leases)
    sample_leases.leased(ranges((50, 60)))
    assert step(sample_leases, 4) == [0, 1, 2, 3]
    with pytest.raises(LowcommError, match="no 1 samples left"):
        step(sample_leases, 1)
    give(sample_leases)
    assert step(sample_leases, 2) == [50, 51]


def test_what_steps_used_since_they_contributed_is_drawn_again_only_if_it_is_thrown_away() -> None:
    sample_leases = SimulatedLeases(interval=2)
    sample_leases.leased(ranges((0, 9)))
    give(sample_leases)
    assert step(sample_leases, 2) == [0, 1]
    sample_leases.contribute()
    assert step(sample_leases, 2) == [2, 3]
    sample_leases.leased(ranges((2, 9)))
    give(sample_leases)
    assert step(sample_leases, 1) == [4]
    give(sample_leases, anew=True)
    assert step(sample_leases, 1) == [2]
