"""Whole clusters under faults: fresh seeds in each run, and every seed that ever failed."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from protocols.types.errors import ConfigError
from sims.checkers.history import HistoryCheckers
from sims.scenarios.fault_plan import KINDS, PlannedFault
from sims.sweep import (
    PEERS,
    SeedResult,
    _run_all,
    draw_training,
    main,
    parse_peers,
    run_seed,
    summary,
)
from tests.sims.replaying import failed_once, replayed

ROOT = Path(__file__).parent.parent.parent
CHUNKS, CHUNK_SEEDS = 30, 10
FAILED_ONCE = failed_once("sweep")
"""Each of these showed a bug once: regressions.toml."""


@pytest.fixture(scope="module")
def fresh(seed_base: int) -> Iterator[SeedResult]:
    """One after the other, played ahead by two processes."""
    seeds = range(seed_base, seed_base + CHUNKS * CHUNK_SEEDS)
    return _run_all(seeds, peers=PEERS, processes=2)


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What took place in the fresh seeds of this module."""
    return Counter()


def check(result: SeedResult) -> None:
    story = "\n".join(result.story[-40:])
    replay = f"python -m sims.sweep --first {result.seed} --seeds 1 --story"
    assert not result.violations, "\n".join([story, *result.violations, f"replay: {replay}"])


@replayed(FAILED_ONCE, newest=6, recent=20)
def test_a_seed_that_failed_once_does_not_fail_again(seed: int, tally: Counter[str]) -> None:
    result = run_seed(seed)
    tally.update(result.happened)
    check(result)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fresh_seeds_hold_every_promise(
    chunk: int, fresh: Iterator[SeedResult], tally: Counter[str]
) -> None:
    results = list(itertools.islice(fresh, CHUNK_SEEDS))
    assert len(results) == CHUNK_SEEDS, f"chunk {chunk} is incomplete"
    for result in results:
        tally.update(result.happened)
        tally.update(seeds=1, commits=result.commits)
    for result in results:
        check(result)


def test_every_kind_of_fault_took_place_and_rounds_went_on(tally: Counter[str]) -> None:
    """A promise that nothing tried to break was not tested."""
    if tally["seeds"] < CHUNKS * CHUNK_SEEDS:
        pytest.skip("it looks back on the fresh seeds of the whole module")
    kinds = (*KINDS, "transfer", "discard", "revived", "leader killed")
    missing = [kind for kind in kinds if not tally[kind]]
    assert not missing, f"never happened: {missing}"
    assert sum(tally[kind] for kind in KINDS) > 5 * tally["seeds"]
    assert tally["commits"] > 5 * tally["seeds"]


def test_a_plan_written_by_hand_is_played_as_written() -> None:
    plan = [PlannedFault(at_s=3.0, kind="kill", peer=0, other=0, duration_s=0.0)]
    result = run_seed(4, plan=plan)
    assert [line.split()[1] for line in result.story if "kill" in line] == ["kill"]
    assert result.happened["kill"] == 1


def test_without_faults_nothing_is_worth_a_note() -> None:
    result = run_seed(4, plan=[])
    check(result)
    assert all(" stops: finished" in line for line in result.story)


def test_a_seed_is_the_same_cluster_whoever_plays_it() -> None:
    again = [run_seed(4711), *_run_all(range(4711, 4713), peers=PEERS, processes=2)]
    assert asdict(again[0]) == asdict(again[1])
    assert again[2].seed == 4712
    assert again[2].story != again[1].story


def test_a_share_of_the_seeds_has_results_that_come_after_boundaries_of_other_fragments() -> None:
    drawn = [draw_training(seed) for seed in range(1000)]
    several = [x for x in drawn if x.fragments > 1 and x.overlap_steps > x.slot_steps]
    assert len(several) > 100
    assert {each.fragments for each in several} == {2, 3, 4}


def test_the_sum_of_seeds_that_showed_nothing_is_empty() -> None:
    assert summary([])["seeds"] == summary([])["violations"] == 0


def result(seed: int, *, moves: dict[str, int], violations: int = 0) -> SeedResult:
    return SeedResult(
        seed=seed,
        virtual_s=1800.0,
        commits=20 + seed,
        happened={"kill": 1, "join": seed, "transfer": 1},
        log={"Elected": 2, "Member": 3, "Commit": 9},
        moves=moves,
        comparisons=100,
        violations=["x"] * violations,
        story=[],
    )


def test_seeds_are_added_up_and_what_never_happened_is_named() -> None:
    asked = {"follower > asking": 4}
    total = summary([result(7, moves=asked), result(8, moves=asked, violations=2)])
    assert (total["seeds"], total["first"], total["virtual_hours"]) == (2, 7, 1.0)
    assert total["faults"] == {**dict.fromkeys(KINDS, 0), "join": 15, "kill": 2}
    assert total["outcomes"] == {"transfer": 2}
    assert (total["elections"], total["joins"], total["restores"]) == (4, 6, 0)
    assert (total["violations"], total["failed"]) == (2, [8])
    assert total["rounds_committed"] == 27.5  # The median.
    assert total["transitions"] == {"follower > asking": 8}
    missing = total["transitions_missing"]
    assert isinstance(missing, list)
    assert "candidate > leader" in missing
    assert "follower > asking" not in missing


@pytest.mark.parametrize(("text", "peers"), [("3-9", (3, 9)), ("4", (4, 4)), ("1-1", (1, 1))])
def test_how_many_peers(text: str, peers: tuple[int, int]) -> None:
    assert parse_peers(text) == peers


@pytest.mark.parametrize("text", ["", "-", "0", "9-3", "0-3", "x", "3-x", "-3", "3.5"])
def test_how_many_peers_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match="--peers"):
        parse_peers(text)


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(seeds=2, first=4711, peers="3", processes=1, show=False, as_json=True)
    assert ended.value.code == 0
    total = json.loads(capsys.readouterr().out)
    assert (total["seeds"], total["first"], total["failed"]) == (2, 4711, [])
    assert total["rounds_committed"] >= 10
    assert total["violations"] == 0


def test_the_command_shows_a_story_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(seeds=1, first=4711, peers="3", processes=1, show=True, as_json=False)
    shown = capsys.readouterr()
    assert "replay: python -m sims.sweep --first 4711 --seeds 1 --peers 3 --story" in shown.err
    assert "stops: finished" in shown.err
    assert "violations: 0" in shown.out


def test_the_same_seed_has_the_same_log_byte_for_byte(tmp_path: Path) -> None:
    """Every event and every command, in two processes whose sets have another order."""
    logs = [tmp_path / "one.txt", tmp_path / "other.txt"]
    for number, log in enumerate(logs):
        words = ["-m", "sims.sweep", "--first", "4711", "--seeds", "1", "--log", str(log)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(number + 1)}
        subprocess.run([sys.executable, *words], env=env, check=True, stdout=subprocess.DEVNULL)
    one, other = (log.read_bytes() for log in logs)
    assert one == other
    lines = one.decode().splitlines()
    assert lines[0] == "seed 4711"
    assert " < Bootstrap(" in one.decode()
    assert " > Persist(" in one.decode()
    assert len(lines) > 1000


def test_a_failing_seed_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(checkers: HistoryCheckers, *_: object) -> None:
        checkers.violations.append("this is wrong")

    monkeypatch.setattr(HistoryCheckers, "encoded", forget)
    with pytest.raises(SystemExit) as ended:
        main(seeds=1, first=4711, peers="3", processes=1)
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert "this is wrong" in shown
    assert "replay: python -m sims.sweep --first 4711 --seeds 1 --peers 3 --story" in shown
    assert "fewer faults: python -m sims.shrink --seed 4711 --peers 3" in shown
