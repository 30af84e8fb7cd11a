"""The smallest plan is small, still fails in the same way, and can be replayed."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sims.scenarios.fault_plan import PlannedFault, draw_plan
from sims.scenarios.plan_files import read_plan
from sims.shrink import failures, kinds, main, shrink

ROOT = Path(__file__).parent.parent.parent
MUTANT = "no-rebase"
SEEDS = 10
"""Some of the first seeds catch it."""


def plan(count: int) -> list[PlannedFault]:
    return [
        PlannedFault(at_s=float(i), kind="kill", peer=i, other=0, duration_s=4.0)
        for i in range(count)
    ]


def numbers(faults: Sequence[PlannedFault]) -> set[int]:
    return {fault.peer for fault in faults}


@pytest.mark.parametrize("needed", [set[int](), {0}, {19}, {3, 4}, {0, 7, 19}, set(range(20))])
def test_what_is_needed_stays_and_nothing_else(needed: set[int]) -> None:
    smallest = shrink(plan(20), lambda faults: needed <= numbers(faults))
    assert numbers(smallest) == needed


def test_a_fault_that_only_another_one_made_necessary_goes_too() -> None:
    def fails(faults: Sequence[PlannedFault]) -> bool:
        left = numbers(faults)
        return 2 in left and (9 in left or 5 not in left)

    assert numbers(shrink(plan(12), fails)) == {2}


def test_what_is_left_is_as_short_as_it_may_be() -> None:
    def fails(faults: Sequence[PlannedFault]) -> bool:
        return any(x.peer == 3 and x.duration_s >= 1.0 for x in faults)

    assert [(x.peer, x.duration_s) for x in shrink(plan(8), fails)] == [(3, 1.0)]


def test_halves_are_tried_before_single_faults() -> None:
    runs = 0

    def fails(faults: Sequence[PlannedFault]) -> bool:
        nonlocal runs
        runs += 1
        return 700 in numbers(faults)

    assert numbers(shrink(plan(1000), fails)) == {700}
    assert runs < 60, "a thousand faults, one by one, would be as many runs"


def test_a_kind_names_no_peer_and_no_number() -> None:
    found = kinds(
        [
            "Traceback (most recent call last):",
            '  File "a.py", line 3, in f',
            "AssertionError: other bytes than were announced",
            "p3.0a1b2c3d did not finish:  Wait(phase='reducing')",
            "p4.0a1b2c3e did not finish:  Wait(phase='waiting')",
            "round 17: p3.0a1b2c3d holds " + "ab" * 16 + ", p1.0a1b2c3d holds " + "0f" * 16,
        ]
    )
    assert found == [
        "AssertionError: other bytes than were announced",
        "PEER did not finish",
        "round N",
    ]


def test_a_healthy_seed_has_its_faults_and_no_failure() -> None:
    faults, how = failures(4711, plan=None, peers=(3, 9))
    assert (faults, how) == (draw_plan(4711, until_s=30.0), [])


def test_who_does_not_fail_is_not_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(seed=4711, peers="3")
    assert ended.value.code == 1
    assert capsys.readouterr().out == "seed 4711 does not fail\n"


@pytest.mark.long
@pytest.mark.deadline(120)
def test_the_printed_command_fails_with_the_smallest_plan(tmp_path: Path) -> None:
    """In processes of their own: a planted bug stays."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            check=False,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
        )

    words = ["-m", "sims.sweep", "--first", "0", "--seeds", str(SEEDS), "--json"]
    failed = json.loads(run([*words, "--mutant", MUTANT]).stdout)["failed"]
    drawn = {each: len(draw_plan(each, until_s=30.0)) for each in failed}
    seed = max(failed, key=drawn.__getitem__)
    found = run(["-m", "sims.shrink", "--seed", str(seed), "--mutant", MUTANT])
    assert found.returncode == 0, found.stderr
    assert 0 < len(read_plan(tmp_path / f"plan-{seed}.json")) <= drawn[seed] // 2
    first, *_, last = found.stdout.splitlines()
    assert "steps N to N of PEER are thrown away" in first
    command = shlex.split(last.removeprefix("replay: python "))
    again = run(command)
    assert again.returncode == 1
    assert "are thrown away" in again.stderr
