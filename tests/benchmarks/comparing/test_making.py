"""What is kept is not trained again, and what fails is said."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparing import making
from benchmarks.comparing.kept import keep, kept
from benchmarks.comparing.making import WorkFiles, make_all
from benchmarks.comparing.settings import setting_of
from tests.benchmarks.comparing.tiny import CORPUS, SETTING, outcome

SETTINGS = [replace(SETTING, seed=seed) for seed in (1, 2, 3)]


def test_warm_starts_come_first_and_an_ended_comparison_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, started = WorkFiles(tmp_path / "outcomes", tmp_path, jobs=1), list[list[str]]()

    def answer(argv: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        started.append(argv)
        text, file = argv[-3:-1]
        setting = setting_of(json.loads(text))
        if "--warm" not in argv and setting.seed == 3:
            return subprocess.CompletedProcess(argv, 1, None, "Traceback\nMemoryError")
        if "--warm" not in argv:
            keep(Path(file), setting, outcome(1.0))
        return subprocess.CompletedProcess(argv, 0, None, "")

    monkeypatch.setattr(making.subprocess, "run", answer)
    keep(place.outcomes, SETTINGS[0], outcome(2.0))
    failed = make_all(SETTINGS, place, CORPUS)
    assert failed == ["diloco, equal, seed 3, lr 0.003: MemoryError"]
    assert ["--warm" in argv for argv in started] == [True, True, False, False]
    found = [kept(place.outcomes, one) for one in SETTINGS]
    assert [None if one is None else one.loss for one in found] == [2.0, 1.0, None]
    started.clear()
    make_all(SETTINGS, place, CORPUS)
    assert [setting_of(json.loads(argv[-3])).seed for argv in started] == [3, 3]
    assert make_all(SETTINGS[:2], place, CORPUS) == []
    assert len(started) == 2


@pytest.mark.long
def test_the_program_that_trains_is_there(tmp_path: Path) -> None:
    scratch = replace(SETTING, warm_steps=0)
    (failed,) = make_all(
        [scratch], WorkFiles(tmp_path / "outcomes", tmp_path / "none", jobs=1), CORPUS
    )
    assert "error: no complete corpus in" in failed
