"""Simulated ranks draw what is theirs, and results wait while it is too little."""

from protocols.types.sample_ranges import SampleRange, Samples
from sims.node.samples import SampleLeases


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def step(feed: SampleLeases, wanted: int) -> list[int] | None:
    drawn = feed.draw(wanted)
    if drawn is not None:
        feed.step()
    return drawn


def more_follow() -> bool:
    """The result is not the last one."""
    return False


def give(feed: SampleLeases, *, anew: bool = False) -> None:
    """The next result of the anchor, once there is enough."""
    feed.post(lambda: feed.take(feed.lease, anew=anew, last=False), more_follow)


def test_ranks_draw_the_lowest_and_say_it_once() -> None:
    feed = SampleLeases(interval=4)
    feed.leased(ranges((2, 4), (7, 20)))
    give(feed)
    assert step(feed, 3) == [2, 3, 7]
    assert feed.contribute() == ranges((2, 4), (7, 8))
    assert feed.contribute() == ()


def test_a_result_waits_until_there_is_enough() -> None:
    feed, begun = SampleLeases(interval=4), list[str]()
    feed.post(lambda: begun.append("now"), more_follow)
    feed.leased(ranges((0, 3)))
    assert begun == []
    feed.leased(ranges((0, 4)))
    feed.leased(ranges((0, 9)))
    assert begun == ["now"]


def test_the_last_result_waits_for_nothing() -> None:
    feed, begun = SampleLeases(interval=4), list[str]()
    feed.post(lambda: begun.append("now"), lambda: True)
    assert begun == ["now"]


def test_what_the_anchor_had_last_feeds_other_fragments_to_their_end() -> None:
    feed, needs_steps, begun = SampleLeases(interval=4), [True], list[str]()
    feed.post(lambda: begun.append("now"), lambda: not needs_steps)
    assert begun == []
    needs_steps.clear()
    feed.post_waiting()
    assert begun == ["now"]
    feed.leased(ranges((0, 4)))
    feed.take(feed.lease, anew=True, last=True)
    assert [step(feed, 3) for _ in range(2)] == [[0, 1, 2], [0, 1, 2]]


def test_ranks_that_are_gone_get_no_result_that_waits() -> None:
    feed, begun = SampleLeases(interval=4), list[str]()
    feed.post(lambda: begun.append("now"), more_follow)
    feed.stop()
    feed.leased(ranges((0, 9)))
    assert begun == []


def test_what_is_leased_meanwhile_is_drawn_after_the_next_result() -> None:
    feed = SampleLeases(interval=4)
    feed.leased(ranges((0, 4)))
    give(feed)
    feed.leased(ranges((50, 60)))
    assert step(feed, 4) == [0, 1, 2, 3]
    assert step(feed, 1) is None
    give(feed)
    assert step(feed, 2) == [50, 51]


def test_what_steps_used_since_they_contributed_is_drawn_again_only_if_it_is_thrown_away() -> None:
    feed = SampleLeases(interval=2)
    feed.leased(ranges((0, 9)))
    give(feed)
    assert step(feed, 2) == [0, 1]
    feed.contribute()
    assert step(feed, 2) == [2, 3]
    feed.leased(ranges((2, 9)))
    give(feed)
    assert step(feed, 1) == [4]
    give(feed, anew=True)
    assert step(feed, 1) == [2]
