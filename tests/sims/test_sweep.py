"""Whole clusters under faults: fresh seeds in each run, and every seed that ever failed."""

import json
from collections import Counter

import pytest

from sims.faults import KINDS, Fault
from sims.sweep import SeedResult, main, run_seed

CHUNKS, CHUNK_SEEDS = 15, 10
FAILED_ONCE = (
    *(0, 8, 10, 14, 19, 26, 30, 35, 63, 97, 1008, 1069, 1150, 1174, 1179, 1292, 1293),
    *(300000, 300040, 300147, 300261, 300276, 300363, 400192, 400335, 400549, 701190),
)
"""Each of these showed a bug once: docs/bugs-found-by-simulation.md."""


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What took place in the fresh seeds of this module."""
    return Counter()


def check(result: SeedResult) -> None:
    story = "\n".join(result.story[-40:])
    replay = f"python -m sims.sweep --first {result.seed} --seeds 1 --story"
    assert not result.violations, "\n".join([story, *result.violations, f"replay: {replay}"])


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once_does_not_fail_again(seed: int) -> None:
    check(run_seed(seed))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fresh_seeds_hold_every_promise(chunk: int, seed_base: int, tally: Counter[str]) -> None:
    for offset in range(CHUNK_SEEDS):
        result = run_seed(seed_base + chunk * CHUNK_SEEDS + offset)
        check(result)
        tally.update(result.happened)
        tally.update(seeds=1, commits=result.commits)


def test_every_kind_of_fault_took_place_and_rounds_went_on(tally: Counter[str]) -> None:
    """A promise that nothing tried to break was not tested."""
    if tally["seeds"] < CHUNKS * CHUNK_SEEDS:
        pytest.skip("it looks back on the fresh seeds of the whole module")
    often = {kind: tally[kind] for kind in (*KINDS, "transfer", "discard") if tally[kind] < 10}
    assert not often, f"too rare to mean anything: {often}"
    assert tally["commits"] > 5 * tally["seeds"]


def test_a_plan_written_by_hand_is_played_as_written() -> None:
    plan = [Fault(at_s=3.0, kind="kill", peer=0, other=0, duration_s=0.0)]
    result = run_seed(4, plan=plan)
    assert [line.split()[1] for line in result.story if "kill" in line] == ["kill"]
    assert result.happened["kill"] == 1


def test_without_faults_nothing_is_worth_a_note() -> None:
    result = run_seed(4, plan=[])
    check(result)
    assert all(" stops: finished" in line for line in result.story)


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(seeds=2, first=4711, show=False, as_json=True)
    assert ended.value.code == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["seeds"], summary["first"], summary["failed"]) == (2, 4711, [])
    assert summary["rounds_committed"] >= 20
    assert summary["violations"] == 0


def test_the_command_shows_a_story_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(seeds=1, first=4711, show=True, as_json=False)
    shown = capsys.readouterr().out
    assert "replay: python -m sims.sweep --first 4711 --seeds 1 --story" in shown
    assert "stops: finished" in shown
