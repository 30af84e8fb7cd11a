"""Whole clusters whose peers exchange in pairs: fresh seeds under faults, and planted bugs."""

import json
from collections import Counter

import pytest

from sims.gossip_sweep import main, run_seed
from sims.mutants import Hunt, hunt_all
from sims.scenarios.fault_plan import PlannedFault
from sims.sweep import SeedResult
from tests.sims.replaying import failed_once

CHUNKS, CHUNK_SEEDS = 3, 3
"""Of fresh seeds, in each run; `make nightly` plays 1000."""
FAILED_ONCE = failed_once("gossip_sweep")
"""Each of these showed a bug once: regressions.toml."""
NAMED = ("an-attempt-pairs-anew", "sums-a-partner-that-was-left-out")


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What took place in the seeds of this module."""
    return Counter()


def check(result: SeedResult) -> None:
    story = "\n".join(result.story[-40:])
    replay = f"python -m sims.gossip_sweep --first {result.seed} --seeds 1 --story"
    assert not result.violations, "\n".join([story, *result.violations, f"replay: {replay}"])


def play(seed: int, tally: Counter[str], *, plan: list[PlannedFault] | None = None) -> SeedResult:
    result = run_seed(seed, plan=plan)
    tally.update(result.happened)
    tally.update(result.log)
    tally.update(seeds=1)
    check(result)
    return result


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once_does_not_fail_again(seed: int, tally: Counter[str]) -> None:
    play(seed, tally)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fresh_seeds_hold_every_promise(chunk: int, seed_base: int, tally: Counter[str]) -> None:
    for offset in range(CHUNK_SEEDS):
        play(seed_base + chunk * CHUNK_SEEDS + offset, tally)


def test_without_faults_every_round_counts_everybody() -> None:
    result = run_seed(3, plan=[])
    check(result)
    assert result.log.get("Attempt", 0) == 0
    assert result.commits == result.log["Commit"] > 0


def test_who_is_left_out_costs_its_partner_nothing_but_this_exchange(tally: Counter[str]) -> None:
    pause = PlannedFault(at_s=5.0, kind="pause", peer=1, other=0, duration_s=9.0)
    result = play(4, tally, plan=[pause])
    assert result.happened["pause"] == 1


def test_the_seeds_saw_losses_joins_and_restores(tally: Counter[str]) -> None:
    if tally["seeds"] < len(FAILED_ONCE) + CHUNKS * CHUNK_SEEDS + 1:
        pytest.skip("it looks back on the seeds of the whole module")
    assert min(tally[kind] for kind in ("Attempt", "Member", "Restore", "transfer")) > 0


@pytest.mark.long
def test_bugs_in_exchanging_in_pairs_are_caught() -> None:
    verdicts = list(hunt_all([Hunt(name, "", 0, 40) for name in NAMED], jobs=2))
    assert {v.name: v.caught for v in verdicts} == dict.fromkeys(NAMED, True)


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(seeds=2, first=4711, processes=1, show=True, as_json=True)
    assert ended.value.code == 0
    shown = capsys.readouterr()
    total = json.loads(shown.out)
    assert (total["seeds"], total["first"], total["failed"]) == (2, 4711, [])
    assert "replay: python -m sims.gossip_sweep --first 4711 --seeds 1 --story" in shown.err
