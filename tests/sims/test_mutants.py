"""The simulator notices bugs: those that we plant."""

import json
from pathlib import Path

import pytest
import typer

from protocols import steps
from protocols.raft import Raft
from protocols.rounds import FragmentRounds
from protocols.step_entries import step_view
from sims.faults import draw_plan
from sims.mutants import (
    KNOWN,
    OF_PAIRS,
    PLOTS,
    Hunt,
    StuckError,
    cpu_limit,
    hunt_all,
    main,
    what_fails,
)
from sims.planting import Edit, Mutant, UnplantableError
from sims.sweep import PAIR_EVERY, SAFETY_S

EASY = (
    *("no-rebase", "rebases-and-carries", "sums-without-the-missing"),
    *("half-is-a-majority", "acknowledges-before-the-disk", "no-pre-vote"),
)
"""One of the first seeds catches each of these."""
DO_NOTHING = "def plant():\n    pass\n"


def hunt(*names: str, seeds: int, file: Path | None = None) -> dict[str, tuple[bool, str]]:
    tasks = [Hunt(name, str(file or ""), 0, seeds) for name in names]
    return {v.name: (v.caught, v.by) for v in hunt_all(tasks, jobs=2)}


def go_round_in_circles() -> None:
    while True:  # In Python: a signal does not end a loop in C.
        pass


def test_a_wrong_rebase_and_a_partial_sum_are_caught() -> None:
    verdicts = hunt(*EASY, seeds=10)
    assert {name: caught for name, (caught, _) in verdicts.items()} == dict.fromkeys(EASY, True)
    assert verdicts["no-rebase"][1].endswith("are thrown away")
    assert verdicts["rebases-and-carries"][1].endswith(
        ("are counted already", "are thrown away")  # The core may notice it first, by the samples.
    )
    assert "its commit says" in verdicts["sums-without-the-missing"][1]


def test_committed_samples_leased_again_and_a_forgetful_rebase_are_caught() -> None:
    verdicts = hunt("leases-committed-samples", "a-rebase-forgets-its-samples", seeds=5)
    assert [caught for caught, _ in verdicts.values()] == [True, True]
    assert "is leased what is committed" in verdicts["leases-committed-samples"][1]


def test_only_pairs_are_asked_about_a_fork() -> None:
    name = min(OF_PAIRS)
    assert list(Hunt(name, "", 3, 3).tries()) == [8, 16, 24]
    assert list(Hunt("votes-twice", "", 3, 3).tries()) == [3, 4, 5]


def test_what_shows_in_one_plot_alone_is_hunted_where_it_happens() -> None:
    (name,) = PLOTS
    tried = list(Hunt(name, "", 0, 3).tries())
    assert not any(seed % PAIR_EVERY == 0 for seed in tried)
    plans = [draw_plan(seed, until_s=SAFETY_S) for seed in range(max(tried))]
    having = [n for n, plan in enumerate(plans) if any(f.kind == PLOTS[name] for f in plan)]
    assert [n for n in having if n % PAIR_EVERY] == tried[:-1]


@pytest.mark.long
@pytest.mark.deadline(1800)
def test_every_mutant_is_caught() -> None:
    verdicts = hunt(*(mutant.name for mutant in KNOWN), seeds=500)
    assert [name for name, (caught, _) in verdicts.items() if not caught] == []


@pytest.mark.parametrize("mutant", KNOWN, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_into_the_source(mutant: Mutant) -> None:
    """Made, but not planted: this process has other tests to run."""
    for edit in (mutant.edit, mutant.also):
        if edit is not None:
            assert edit.changed().__code__ != edit.function.__code__


def test_there_are_enough_mutants_and_each_says_why() -> None:
    assert len({mutant.name for mutant in KNOWN}) == len(KNOWN) >= 60
    assert all(mutant.why.endswith(".") for mutant in KNOWN)


def test_an_edit_that_does_not_fit_any_more_is_refused() -> None:
    with pytest.raises(UnplantableError, match=r"Raft\.append has 0 times: once upon a time"):
        Edit(Raft.append, "once upon a time", "").plant()
    with pytest.raises(UnplantableError, match=r"Raft\.reconfiguring has 0 times"):
        Edit(Raft.reconfiguring, "once upon a time", "").plant()


def test_planting_changes_the_method_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that the old ones come back when this test is over.
    for what in (FragmentRounds.start, FragmentRounds.finished):
        function = Edit(what, "", "").function
        monkeypatch.setattr(function, "__code__", function.__code__)
    contribute = FragmentRounds.contribute
    Edit(FragmentRounds.start, '"anew"', '"rebase"').plant()
    Edit(FragmentRounds.finished, ">=", "<").plant()
    assert '"rebase"' not in repr(contribute.__code__.co_consts)
    assert "rebase" in FragmentRounds.start.__code__.co_consts
    assert isinstance(vars(FragmentRounds)["finished"], property)
    assert FragmentRounds.contribute is contribute


def test_who_imported_a_function_has_the_bug_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_view, "__code__", step_view.__code__)
    before = steps.step_view.__code__
    Edit(step_view, "if ended else", "if not ended else").plant()
    assert steps.step_view.__code__ != before


def test_somebody_elses_mutant_is_planted(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(
        "from protocols.rounds import FragmentRounds\n"
        "def plant():\n"
        "    FragmentRounds._counted = lambda self, round_: True\n"
    )
    assert hunt("theirs", seeds=10, file=file)["theirs"][0]


def test_a_file_without_a_plant_is_named(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("")
    caught, by = hunt("empty", seeds=1, file=file)["empty"]
    assert (caught, by) == (False, f"cannot be planted: {file} has no function plant()")


def test_what_changes_nothing_is_not_caught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "harmless.py"
    file.write_text(DO_NOTHING)
    with pytest.raises(SystemExit) as ended:
        main(mutant=file, seeds=2, first=4711, jobs=1, as_json=True)
    assert ended.value.code == 1
    summary = json.loads(capsys.readouterr().out)
    (mutant,) = summary["mutants"]
    assert (mutant["name"], mutant["caught"], mutant["seeds"]) == ("harmless", False, 2)
    assert (summary["caught"], summary["overlooked"]) == (0, ["harmless"])


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="no mutant is called no-such"):
        main(only=["no-such", EASY[0]])


def test_a_healthy_seed_shows_nothing() -> None:
    assert what_fails(4711) == ""


def test_a_seed_that_goes_round_in_circles_is_ended() -> None:
    with pytest.raises(StuckError, match=r"took 0\.02 s"), cpu_limit(0.02):
        go_round_in_circles()
