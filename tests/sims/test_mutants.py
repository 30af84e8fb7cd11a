"""The simulator notices bugs: those that we plant."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from protocols.raft.node import Raft
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.rounds.local_work import LocalWork
from protocols.state.step_entries import step_view
from protocols.steps import step_machine
from protocols.types.errors import ConfigError
from sims.mutants import (
    PLOTS,
    Hunt,
    HuntVerdict,
    StuckError,
    cpu_limit,
    hunt_all,
    last_catches,
    main,
    remember,
    tasks_of,
    what_fails,
)
from sims.mutations.catalogue import KNOWN, OF_PAIRS, find
from sims.mutations.mutant_files import read_mutants
from sims.mutations.patch import Edit, Mutant, UnplantableError
from sims.mutations.rounds import MUTANTS as CORE_MUTANTS
from sims.scenarios.fault_plan import draw_plan
from sims.sweep import PAIR_EVERY, SAFETY_S

EASY = (
    *("no-rebase", "rebases-and-carries", "sums-without-the-missing"),
    *("half-is-a-majority", "acknowledges-before-the-disk", "no-pre-vote"),
)
"""One of the first seeds catches each of these."""
SAMPLE = 3
"""Of the mutants, in each run of the long tests."""
DO_NOTHING = "def plant():\n    pass\n"
EXAMPLE = Path(__file__).parent / "example_mutants.py"
HEAD = """\
from protocols.rounds.fragment_rounds import FragmentRounds
from sims.mutations.patch import Edit, Mutant
"""
NOT_MUTANTS = {
    "": r"defines no mutant; write MUTANTS = \[Mutant\(name, why, Edit\(.*\)\)\] or a function",
    "MUTANTS = []": r"MUTANTS must be a list of Mutant",
    "MUTANTS = [1]": r"MUTANTS\[0\] is a int, not a Mutant",
    "import nothing_like_it": r"cannot be imported: ModuleNotFoundError: No module named",
    "def plant(:": r"cannot be imported: SyntaxError: ",
    HEAD + "MUTANTS = [Mutant('a', 'b', Edit(FragmentRounds.no_such, 'x', 'y'))]": (
        r"cannot be imported: AttributeError: .* has no attribute 'no_such'"
    ),
    HEAD + "MUTANTS = [Mutant('a', 'b', Edit(FragmentRounds.applied, 'once upon a time', 'y'))]": (
        r"'a' cannot be planted: FragmentRounds.applied has 0 times, not once: 'once upon a time'"
    ),
    HEAD + "MUTANTS = [Mutant('a', 'b', Edit(FragmentRounds.applied, 'if ', 'fi '))]": (
        r"'a' cannot be planted: .*"
    ),
    HEAD + "MUTANTS = [Mutant('a', 'b', Edit(len, 'x', 'y'))]": (
        r"'a' cannot be planted: <built-in function len> is no function, method or property"
    ),
}
"""What a file holds, and what is said about it."""


def hunt(*names: str, seeds: int, file: Path | None = None) -> dict[str, tuple[bool, str]]:
    tasks = [Hunt(name, str(file or ""), 0, seeds) for name in names]
    return {v.name: (v.caught, v.by) for v in hunt_all(tasks, jobs=2)}


def go_round_in_circles() -> None:
    while True:  # In Python: a signal does not end a loop in C.
        pass


@pytest.mark.long
def test_a_wrong_rebase_and_a_partial_sum_are_caught() -> None:
    verdicts = hunt(*EASY, seeds=10)
    assert {name: caught for name, (caught, _) in verdicts.items()} == dict.fromkeys(EASY, True)
    assert verdicts["no-rebase"][1].endswith("are thrown away")
    assert verdicts["rebases-and-carries"][1].endswith(
        ("are counted already", "are thrown away")  # The core may notice it first, by the samples.
    )
    assert "its commit says" in verdicts["sums-without-the-missing"][1]


@pytest.mark.long
def test_committed_samples_leased_again_and_a_forgetful_rebase_are_caught() -> None:
    verdicts = hunt("leases-committed-samples", "a-rebase-forgets-its-samples", seeds=5)
    assert [caught for caught, _ in verdicts.values()] == [True, True]
    assert "is leased committed samples" in verdicts["leases-committed-samples"][1]


def test_the_seed_that_caught_a_mutant_last_is_tried_first() -> None:
    assert list(Hunt("votes-twice", "", 3, 3, hint=4).tries()) == [4, 3, 5]
    assert set(last_catches()) <= {known.name for known in KNOWN if not known.tests}


def test_seeds_that_caught_a_mutant_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sims.mutants.CAUGHT", tmp_path / "caught.json")
    (tmp_path / "caught.json").write_text('{"no-rebase": 9, "gone": 1}')
    found = [
        HuntVerdict("votes-twice", caught=True, seeds=2, seed=7, by="x", seconds=1.0),
        HuntVerdict("no-rebase", caught=False, seeds=5, seed=5, by="", seconds=1.0),
    ]
    remember(found)
    assert last_catches() == {"no-rebase": 9, "votes-twice": 7}


def test_only_pairs_are_asked_about_a_fork() -> None:
    name = min(OF_PAIRS)
    assert list(Hunt(name, "", 3, 3).tries()) == [8, 16, 24]
    assert list(Hunt("votes-twice", "", 3, 3).tries()) == [3, 4, 5]


def test_what_shows_in_one_plot_alone_is_hunted_where_it_happens() -> None:
    name = "restores-a-void-branch"
    tried = list(Hunt(name, "", 0, 3).tries())
    assert not any(seed % PAIR_EVERY == 0 for seed in tried)
    plans = [draw_plan(seed, until_s=SAFETY_S) for seed in range(max(tried))]
    having = [n for n, plan in enumerate(plans) if any(f.kind == PLOTS[name] for f in plan)]
    assert [n for n in having if n % PAIR_EVERY] == tried[:-1]


@pytest.mark.long
@pytest.mark.deadline(1800)
def test_a_sample_of_the_mutants_is_caught(seed_base: int) -> None:
    """Of those of the log, of rounds and of the leader, others each time: those that a test or a
    known seed catches. `make nightly` plants all, and a hunt for a new seed may take minutes."""
    known = [mutant for mutant in CORE_MUTANTS if mutant.tests or mutant.name in last_catches()]
    first = seed_base * SAMPLE % len(known)
    chosen = (*known, *known)[first : first + SAMPLE]
    tasks = tasks_of("", [mutant.name for mutant in chosen], kind="rounds", first=0, seeds=500)
    assert [verdict.name for verdict in hunt_all(tasks, jobs=2) if not verdict.caught] == []


@pytest.mark.parametrize("mutant", KNOWN, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_into_the_source(mutant: Mutant) -> None:
    """Made, but not planted: this process has other tests to run."""
    for edit in (mutant.edit, mutant.also):
        if edit is not None:
            assert edit.changed().__code__ != edit.function.__code__


def test_there_are_enough_mutants_and_each_says_why() -> None:
    assert len({mutant.name for mutant in KNOWN}) == len(KNOWN) >= 120
    assert all(mutant.why.endswith(".") for mutant in KNOWN)


def test_an_edit_that_does_not_fit_any_more_is_refused() -> None:
    with pytest.raises(UnplantableError, match=r"Raft\.append has 0 times, not once: 'once upon"):
        Edit(Raft.append, "once upon a time", "").plant()
    with pytest.raises(UnplantableError, match=r"Raft\.reconfiguring has 0 times"):
        Edit(Raft.reconfiguring, "once upon a time", "").plant()
    with pytest.raises(UnplantableError, match=r"Raft\.disconnected knows no once: 'once\(peer\)'"):
        Edit(Raft.disconnected, "self.up.discard(peer)", "once(peer)").plant()
    with pytest.raises(UnplantableError, match=r"has no self\.once: 'self\.once"):
        Edit(Raft.disconnected, "self.up.discard(peer)", "self.once(peer)").plant()


def test_planting_changes_the_method_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that the old ones come back when this test is over.
    for what in (LocalWork.start_ranks, FragmentRounds.finished):
        function = Edit(what, "", "").function
        monkeypatch.setattr(function, "__code__", function.__code__)
    contribute = LocalWork.contribute
    Edit(LocalWork.start_ranks, '"anew"', '"rebase"').plant()
    Edit(FragmentRounds.finished, ">=", "<").plant()
    assert '"rebase"' not in repr(contribute.__code__.co_consts)
    assert "rebase" in LocalWork.start_ranks.__code__.co_consts
    assert isinstance(vars(FragmentRounds)["finished"], property)
    assert LocalWork.contribute is contribute


def test_who_imported_a_function_has_the_bug_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_view, "__code__", step_view.__code__)
    before = step_machine.step_view.__code__
    Edit(step_view, "if ended else", "if not ended else").plant()
    assert step_machine.step_view.__code__ != before


@pytest.mark.long
def test_a_mutant_of_another_author_is_planted(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(
        "from protocols.rounds.local_work import LocalWork\n"
        "def plant():\n"
        "    LocalWork.counted = lambda self, round_: True\n"
    )
    assert hunt("theirs", seeds=10, file=file)["theirs"][0]


@pytest.mark.parametrize(("text", "why"), NOT_MUTANTS.items())
def test_a_file_that_defines_no_mutant_is_refused_with_one_line(
    text: str, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why) as refused:
        read_mutants(str(file))
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_and_a_name_that_no_mutant_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"theirs.py: there is no such file"):
        find(str(tmp_path / "theirs.py"))
    with pytest.raises(ConfigError, match=r"defines no mutant third"):
        find(f"{EXAMPLE}:third")
    with pytest.raises(ConfigError, match=r"defines 2 mutants: .*; choose: .*:NAME"):
        find(str(EXAMPLE))


@pytest.mark.parametrize("module", ["sweep", "step_sweep", "gossip_sweep", "mutants"])
def test_a_command_says_in_one_line_what_is_wrong_with_a_file(module: str) -> None:
    command = [sys.executable, "-m", f"sims.{module}", "--mutant", "no/such.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "error: no/such.py: there is no such file\n")


def test_a_plant_that_raises_is_refused_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text("def plant():\n    raise ValueError('not\\ntoday')\n")
    caught, by = hunt("theirs", seeds=1, file=file)["theirs"]
    assert not caught
    assert by == f"{file}:theirs cannot be planted: plant() raises ValueError: not today"


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_the_sweep_plants_the_mutant_of_a_file_in_all_its_processes(
    processes: int, tmp_path: Path
) -> None:
    """Four seeds: of two processes each plays some."""
    file = tmp_path / "theirs.py"
    file.write_text(HEAD + "def plant():\n    FragmentRounds.applied = None\n")
    command = [sys.executable, "-m", "sims.sweep", "--seeds", "4", "--processes", str(processes)]
    command += ["--mutant", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["failed"] == list(range(4))
    assert f"--seeds 1 --peers 3-9 --mutant {file} --story" in done.stderr


@pytest.mark.long
def test_the_mutants_of_the_example_are_hunted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(mutant=str(EXAMPLE), seeds=20, first=0, jobs=2, as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert (ended.value.code, summary["caught"], summary["overlooked"]) == (0, 2, [])


def test_a_mutant_that_does_not_fit_is_not_caught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen: an attribute had another name since the mutant was written, and each seed failed."""
    file = tmp_path / "misfit.py"
    file.write_text(
        HEAD + "def plant():\n    FragmentRounds.applied = lambda self, *_: self.no_such\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(mutant=str(file), seeds=4, first=0, jobs=1, as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert (ended.value.code, summary["caught"]) == (1, 0)


def test_what_changes_nothing_is_not_caught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "harmless.py"
    file.write_text(DO_NOTHING)
    with pytest.raises(SystemExit) as ended:
        main(mutant=str(file), seeds=2, first=4711, jobs=1, as_json=True)
    assert ended.value.code == 1
    summary = json.loads(capsys.readouterr().out)
    (mutant,) = summary["mutants"]
    assert (mutant["name"], mutant["caught"], mutant["seeds"]) == ("harmless", False, 2)
    assert (summary["caught"], summary["overlooked"]) == (0, ["harmless"])


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no mutant is called no-such"):
        main(only=["no-such", EASY[0]])


def test_a_healthy_seed_shows_nothing() -> None:
    assert what_fails(4711) == ""


def test_a_seed_that_goes_round_in_circles_is_ended() -> None:
    with pytest.raises(StuckError, match=r"took 0\.02 s"), cpu_limit(0.02):
        go_round_in_circles()
