"""Whole clusters under faults: fresh seeds in each run, and every seed that ever failed."""

import pytest

from sims.sweep import SeedResult, run_seed

FRESH_SEEDS = 100
FAILED_ONCE = (0, 8, 10, 14, 19, 26, 30, 35, 63, 97, 1008, 1069, 1150, 1174, 1179, 1292, 1293)
"""Each of these showed a bug once: docs/bugs-found-by-simulation.md."""


def check(result: SeedResult) -> None:
    story = "\n".join(result.story[-40:])
    replay = f"python -m sims.sweep --first {result.seed} --seeds 1 --story"
    assert not result.violations, "\n".join([story, *result.violations, f"replay: {replay}"])


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once_does_not_fail_again(seed: int) -> None:
    check(run_seed(seed))


def test_fresh_seeds_hold_every_promise(seed_base: int) -> None:
    results = [run_seed(seed_base + offset) for offset in range(FRESH_SEEDS)]
    for result in results:
        check(result)
    assert sum(result.commits for result in results) > 5 * FRESH_SEEDS


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = run_seed(4711), run_seed(4711)
    assert first == second
    assert first.story
