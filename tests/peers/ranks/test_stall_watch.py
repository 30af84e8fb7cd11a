"""Ranks that make no step are found by their own pace, and only while they have to make steps."""

import pytest

from peers.ranks.stall_watch import FACTOR, LEAST_S, STEPS_KNOWN, StallWatch

TICK_S = 0.1
LEAST_TICKS = round(LEAST_S / TICK_S)
BOTH = (0, 1)


def watched(*, step_ticks: int = 1, steps: int = STEPS_KNOWN) -> StallWatch:
    """Two ranks that made so many steps, each of so many ticks."""
    watch = StallWatch(2, tick_s=TICK_S)
    for tick in range(step_ticks * steps):
        step = (tick + 1) // step_ticks
        watch.tick([step, step], BOTH)
    return watch


def stand(watch: StallWatch, ticks: int, *, steps: int = STEPS_KNOWN) -> None:
    """Rank 0 goes on, rank 1 makes no step."""
    for tick in range(ticks):
        watch.tick([steps + 1 + tick, steps], BOTH)


def test_a_fast_rank_has_stalled_after_the_least_time() -> None:
    watch = watched()
    stand(watch, LEAST_TICKS - 1)
    assert watch.stalled == {}
    stand(watch, 1)
    assert list(watch.stalled) == [1]
    assert "rank 1 has made no step for 1.5 s (at step 5" in watch.stalled[1]


def test_a_slow_rank_has_a_multiple_of_its_longest_step() -> None:
    watch = watched(step_ticks=7)
    stand(watch, round(FACTOR) * 7 - 1)
    assert watch.stalled == {}
    stand(watch, 1)
    assert list(watch.stalled) == [1]


def test_a_rank_that_steps_again_has_not_stalled() -> None:
    watch = watched()
    stand(watch, LEAST_TICKS)
    assert watch.stalled
    watch.tick([99, STEPS_KNOWN + 1], BOTH)
    assert watch.stalled == {}
    # The pause counts as one of its last steps.
    for tick in range(4 * LEAST_TICKS):
        watch.tick([100 + tick, STEPS_KNOWN + 1], BOTH)
    assert watch.stalled == {}


def test_ranks_that_wait_for_the_daemon_do_not_stall() -> None:
    watch = watched()
    stand(watch, LEAST_TICKS)
    watch.tick([99, STEPS_KNOWN], ())
    assert watch.stalled == {}
    for _ in range(100):
        watch.tick([99, STEPS_KNOWN], ())
    for _ in range(LEAST_TICKS - 1):
        watch.tick([99, STEPS_KNOWN], BOTH)
    assert watch.stalled == {}, "the wait does not count"


@pytest.mark.parametrize("steps", [0, STEPS_KNOWN - 1])
def test_the_first_steps_are_not_judged(steps: int) -> None:
    watch = watched(steps=steps)
    for _ in range(1000):
        watch.tick([steps, steps], BOTH)
    assert watch.stalled == {}
