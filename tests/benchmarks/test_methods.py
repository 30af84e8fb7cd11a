"""The command: what it would train, and what it tells of results that nobody trained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import methods
from benchmarks.comparing.kept import keep
from benchmarks.comparing.rows import FULL, GRID, QUICK, SCRATCH, choose
from benchmarks.comparing.settings import Setting
from benchmarks.methods import Plan, main
from lowcomm.data.corpus import Corpus
from lowcomm.methods import AllReduceMethod
from protocols.types.errors import ConfigError
from tests.benchmarks.comparing.tiny import CORPUS, outcome


@pytest.fixture(autouse=True)
def _no_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def corpus(*_: object, **__: object) -> Corpus:
        return CORPUS

    monkeypatch.setattr(methods, "build_corpus", corpus)
    monkeypatch.setattr(methods, "cache_directory", lambda: tmp_path / "cache")


KEPT = "outcomes.jsonl"


def loss_of(one: Setting) -> float:
    """The second point of each grid is the best."""
    best = one.optimizer.lr == 9e-3 or (one.method.name == "diloco" and one.seed == 0)
    return (1.0 if isinstance(one.method, AllReduceMethod) else 1.03) - 0.1 * best + 0.01 * one.seed


def keep_all(plan: Plan) -> None:
    for _, _, one in plan.tried:
        keep(plan.outcomes, one, outcome(loss_of(one)))
    for size in (FULL, SCRATCH):
        for settings in plan.settings(size).values():
            for one in settings:
                keep(plan.outcomes, one, outcome(loss_of(one)))


def test_what_is_trained_after_the_grid_is_the_best_of_it(tmp_path: Path) -> None:
    plan = Plan(choose("allreduce"), tmp_path / KEPT, quick=False)
    assert plan.settings(FULL) == {}
    tried = plan.tried
    for number, (_, _, one) in enumerate(tried):
        assert plan.point_of(plan.picked[0]) is None
        keep(tmp_path / KEPT, one, outcome([1.2, 1.0, None, 1.1][number]))
    assert plan.point_of(plan.picked[0]) is tried[1][1]
    settings = plan.settings(FULL)["allreduce"]
    assert [one.seed for one in settings] == list(FULL.seeds)
    assert {(one.optimizer.lr, one.steps) for one in settings} == {(9e-3, FULL.steps)}
    assert [(one.seed, one.warm_steps) for one in plan.settings(SCRATCH)["allreduce"]] == [(1, 0)]
    assert {one.steps for _, _, one in tried} == {GRID.steps}


def test_quick_has_no_grid_and_one_seed(tmp_path: Path) -> None:
    plan = Plan(choose(""), tmp_path / KEPT, quick=True)
    found = plan.settings(QUICK)
    assert list(found) == [row.name for row in choose("")]
    assert {len(settings) for settings in found.values()} == {1}
    assert {row.world for row in plan.picked} == {"equal", "speeds", "churn"}


def test_the_table_the_bars_and_the_grid_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_all(Plan(choose("diloco"), tmp_path / KEPT, quick=False))
    main(only="diloco", as_kept=True, keep=tmp_path / KEPT, plots=tmp_path, as_json=True)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told["results"]] == [row.name for row in choose("diloco")]
    assert told["results"][0]["chosen"] == "lr 0.009"
    assert [one["name"] for one in told["scratch"]] == ["allreduce", "diloco", "diloco muon"]
    assert [one["met"] for one in told["bars"]] == [False, False, True, True]
    assert len(told["grid"]) == 12
    assert sorted(each.suffix for each in tmp_path.glob("*.svg")) == [".svg", ".svg"]
    main(only="diloco", as_kept=True, keep=tmp_path / KEPT)
    shown = capsys.readouterr().out
    assert "**no**" in shown
    assert "From scratch:" in shown


def test_a_list_says_what_is_kept_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(choose("allreduce"), tmp_path / KEPT, quick=False)
    keep(tmp_path / KEPT, plan.tried[0][2], outcome(1.0))
    main(only="allreduce", listed=True, keep=tmp_path / KEPT)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["kept", "to", "to", "to"]


def test_another_text_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    plan = Plan(choose("allreduce"), tmp_path / KEPT, quick=False)
    keep(tmp_path / KEPT, plan.tried[0][2], replace(outcome(1.0), corpus="e" * 64))
    with pytest.raises(ConfigError, match="text with digest eeeeeeee"):
        main(only="allreduce", keep=tmp_path / KEPT)
