"""The tests notice bugs in the shell: those that we plant."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from protocols.types.errors import ConfigError
from sims.mutations.catalogue import UNIT_TESTED
from sims.mutations.patch import Edit, Mutant, UnplantableError
from sims.planted_tests import ROOT, plant, run_tests
from sims.shell_mutants import (
    TABLE_BEGINS,
    Verdict,
    main,
    overlooked_of,
    sample,
    table,
    try_all,
    write_table,
)
from sims.shell_mutations.all import SHELL_MUTANTS

SAMPLE = 6
"""Of all mutants, in each run of the long tests; `make nightly` plants all."""
QUICK = "private-file-readable-for-all"
DURABLE = "tests/peers/storage/test_fsync.py"
DOCUMENT = ROOT / "docs" / "planted-bugs.md"


@pytest.mark.parametrize("mutant", SHELL_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_into_the_source(mutant: Mutant) -> None:
    """Made, but not planted: this process has other tests to run."""
    mutant.check()
    for edit in (mutant.edit, mutant.also):
        if edit is not None:
            assert edit.changed().__code__ != edit.function.__code__


def test_there_are_enough_mutants_and_each_says_why() -> None:
    assert len({mutant.name for mutant in SHELL_MUTANTS}) == len(SHELL_MUTANTS) >= 60
    assert all(mutant.why.endswith(".") for mutant in SHELL_MUTANTS)


def test_every_mutant_that_tests_notice_names_tests_that_exist() -> None:
    for mutant in (*SHELL_MUTANTS, *UNIT_TESTED):
        assert mutant.tests
        assert all((ROOT / test.partition("::")[0]).is_file() for test in mutant.tests), mutant.name


def test_no_function_is_changed_twice_by_one_mutant() -> None:
    """The second change would take the place of the first."""
    for mutant in (*SHELL_MUTANTS, *UNIT_TESTED):
        assert mutant.also is None or mutant.also.function is not mutant.edit.function


@pytest.mark.long
def test_a_planted_bug_is_noticed_and_named_with_its_test() -> None:
    (mutant,) = [known for known in SHELL_MUTANTS if known.name == QUICK]
    (verdict,) = try_all([mutant], jobs=1)
    assert verdict.caught
    assert (
        verdict.test == f"{DURABLE}::test_what_is_written_is_private_and_on_the_disk_with_its_name"
    )
    assert overlooked_of([verdict]) == []


@pytest.mark.long
def test_what_changes_nothing_is_not_noticed(tmp_path: Path) -> None:
    file = tmp_path / "harmless.py"
    file.write_text("def plant():\n    pass\n")
    ran = run_tests([DURABLE], mutant=f"{file}:harmless")
    assert (ran.passed, ran.failed) == (True, "")


def test_a_test_that_fails_without_the_bug_has_caught_nothing() -> None:
    verdict = Verdict("name", "why", True, f"{DURABLE}::test_no_such", 1.0)
    assert overlooked_of([verdict]) == ["name"]


def test_only_the_mutants_of_the_test_that_fails_without_them_are_overlooked(
    tmp_path: Path,
) -> None:
    file = tmp_path / "test_two.py"
    file.write_text("def test_sound():\n    pass\n\ndef test_faulty():\n    assert False\n")
    name = os.path.relpath(file, ROOT)
    verdicts = [
        Verdict(test, "why", True, f"{name}::test_{test}", 1.0) for test in ("sound", "faulty")
    ]
    assert overlooked_of(verdicts) == ["faulty"]


def test_pytest_refuses_a_mutant_that_is_not_there() -> None:
    command = [sys.executable, "-m", "pytest", "--plant", "no-such", DURABLE]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no mutant is called no-such" in done.stderr


def test_a_name_that_no_mutant_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no mutant of the shell is called no-such"):
        main(only=["no-such", QUICK])
    with pytest.raises(ConfigError, match="no mutant is called no-such"):
        plant("no-such")


def test_the_command_prints_what_came_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = Verdict(QUICK, "Why it is one.", True, f"{DURABLE}::test_it", 2.4)

    def tried(mutants: Sequence[Mutant], *, jobs: int) -> Iterator[Verdict]:
        del jobs
        return iter([seen for _ in mutants])

    def overlooked(verdicts: Sequence[Verdict]) -> list[str]:
        return [verdict.name for verdict in verdicts]

    monkeypatch.setattr("sims.shell_mutants.try_all", tried)
    monkeypatch.setattr("sims.shell_mutants.overlooked_of", overlooked)
    document = tmp_path / "doc.md"
    document.write_text(f"# Title\n\n{TABLE_BEGINS}\n\nold\n")
    with pytest.raises(SystemExit) as ended:
        main(only=[QUICK], as_json=True, table_file=document)
    summary = json.loads(capsys.readouterr().out)
    assert (ended.value.code, summary["caught"], summary["overlooked"]) == (1, 0, [QUICK])
    row = f"| {QUICK} | Why it is one. | `{DURABLE}::test_it` |"
    assert document.read_text() == f"# Title\n\n{TABLE_BEGINS}\n\n{table([seen])}\n"
    assert table([seen]).splitlines()[-1] == row


def test_a_document_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text("# Title\n")
    with pytest.raises(ConfigError, match=r"has no line <!-- python -m sims\.shell_mutants"):
        write_table(document, [])


def test_the_document_names_every_mutant_and_none_is_overlooked() -> None:
    _, _, below = DOCUMENT.read_text().partition(TABLE_BEGINS)
    rows = [line for line in below.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [
        mutant.name for mutant in SHELL_MUTANTS
    ]
    assert not any("**none**" in row for row in rows)


def test_samples_of_consecutive_seeds_cover_all_mutants() -> None:
    seeds = range(4711, 4711 + -(-len(SHELL_MUTANTS) // SAMPLE))
    assert {mutant for seed in seeds for mutant in sample(seed, SAMPLE)} == set(SHELL_MUTANTS)


def test_a_closure_and_what_is_no_function_cannot_be_planted() -> None:
    here = 1

    def closure() -> int:
        return here

    with pytest.raises(UnplantableError, match="is a closure"):
        Edit(closure, "return here", "return here + 1").changed()
    with pytest.raises(UnplantableError, match="is no function"):
        Edit(7, "", "").changed()


@pytest.mark.long
@pytest.mark.deadline(900)
def test_a_sample_of_the_mutants_is_noticed(seed_base: int) -> None:
    """Others each time: `--seed-base` repeats it."""
    verdicts = list(try_all(sample(seed_base, SAMPLE), jobs=2))
    assert overlooked_of(verdicts) == []
