"""Bars are chosen by their names, and what was measured is kept."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import bars
from benchmarks.asked import BARS, Requirement
from benchmarks.bars import choose, judged, kept_in, measure, table
from protocols.types.errors import ConfigError
from tests.benchmarks.told import BY_NAME, TOLD


def test_bars_are_chosen_by_how_their_names_begin() -> None:
    assert choose("") == list(BARS)
    assert [one.name for one in choose("memory-int8,codec")] == [
        "codec-int8",
        "codec-fp4",
        "memory-int8",
        "memory-int8-encrypted",
    ]
    with pytest.raises(ConfigError, match=r"--only fast: there are shared-fp32-2, "):
        choose("fast")


def test_what_is_measured_is_kept_for_all_bars_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def answer(argv: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        asked.append(argv)
        return subprocess.CompletedProcess(argv, 0, json.dumps(TOLD))

    monkeypatch.setattr(bars.subprocess, "run", answer)
    one, other = BY_NAME["long-64-cold"], BY_NAME["long-64-first"]
    file = kept_in(tmp_path, one.command)
    assert file == kept_in(tmp_path, other.command)
    assert measure(one.command, file) == "done"
    assert "benchmarks.exchange" in asked[0]
    assert asked[0][-1] == "--json"
    rows = [judged(each, file) for each in (one, other)]
    assert [row["measured"] for row in rows] == ["70.0% (84.0% while the data moves)", "60.0%"]
    shown = table(rows).splitlines()
    assert len(shown) == 4
    assert len({line.count("|") for line in shown}) == 1
    assert "**no**" in shown[2]


def test_what_cannot_be_measured_is_not_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(argv: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(argv, 1, "")

    monkeypatch.setattr(bars.subprocess, "run", fail)
    one = Requirement("a", "b", "exchange", lambda told: (str(told), True))
    (tmp_path / "kept").write_text(json.dumps(TOLD), encoding="ascii")
    assert measure(one.command, tmp_path / "kept") == "failed; its output is above"
    row = judged(one, tmp_path / "kept")
    assert (row["measured"], row["met"]) == ("failed", False)
