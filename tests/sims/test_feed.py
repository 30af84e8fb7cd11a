"""Simulated ranks draw what is theirs, and wait while it is too little."""

import pytest

from protocols.samples import SampleRange, Samples
from sims.feed import Feed


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def test_ranks_draw_the_lowest_and_say_it_once() -> None:
    feed = Feed(interval=4)
    feed.leased(ranges((2, 4), (7, 20)))
    feed.start(lambda: None)
    assert feed.draw(3) == [2, 3, 7]
    assert feed.contribute() == ranges((2, 4), (7, 8))
    assert feed.contribute() == ()


def test_ranks_begin_when_there_is_enough() -> None:
    feed, begun = Feed(interval=4), list[str]()
    feed.start(lambda: begun.append("now"))
    feed.leased(ranges((0, 3)))
    assert begun == []
    feed.leased(ranges((0, 4)))
    feed.leased(ranges((0, 9)))
    assert begun == ["now"]


def test_ranks_that_are_gone_do_not_begin() -> None:
    feed, begun = Feed(interval=4), list[str]()
    feed.start(lambda: begun.append("now"))
    feed.stop()
    feed.leased(ranges((0, 9)))
    assert begun == []


def test_what_is_leased_meanwhile_is_for_the_next_interval() -> None:
    feed = Feed(interval=4)
    feed.leased(ranges((0, 4)))
    feed.start(lambda: None)
    feed.leased(ranges((50, 60)))
    feed.draw(4)
    with pytest.raises(AssertionError, match="more than they were given"):
        feed.draw(1)
    feed.start(lambda: None)
    assert feed.draw(2) == [50, 51]


def test_what_was_contributed_is_not_drawn_again_while_the_lease_is_older_than_that() -> None:
    """The core's word comes in the order of the jobs: the one before may still be the last."""
    feed = Feed(interval=2)
    feed.leased(ranges((0, 4)))
    feed.start(lambda: None)
    assert feed.draw(2) == [0, 1]
    seen = feed.contribute()
    feed.start(lambda: None)
    assert feed.draw(2) == [2, 3]
    feed.leased(ranges((2, 6)))
    feed.counted_on(seen)
    feed.start(lambda: None)
    assert feed.draw(2) == [4, 5]
