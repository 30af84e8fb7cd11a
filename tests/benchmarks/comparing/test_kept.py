"""The outcome of a setting is read as it was written, or not at all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.comparing.kept import check_corpus, keep, kept, name_of
from lowcomm.methods import AllReduceMethod
from protocols.types.errors import ConfigError
from tests.benchmarks.comparing.tiny import SETTING, outcome


@pytest.mark.parametrize("loss", [1.23456, None])
def test_an_outcome_is_kept_the_failed_one_too(tmp_path: Path, loss: float | None) -> None:
    file = tmp_path / "new" / "outcomes.jsonl"
    assert kept(file, SETTING) is None
    keep(file, SETTING, outcome(loss))
    assert kept(file, SETTING) == outcome(loss)
    assert kept(file, replace(SETTING, seed=4)) is None
    keep(file, replace(SETTING, seed=4), outcome(2.0))
    keep(file, SETTING, outcome(3.0))
    assert kept(file, SETTING) == outcome(3.0), "the newest one"


def test_a_line_names_its_setting_and_is_small(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    keep(file, SETTING, outcome(1.23456789, waited=(0.123456, 0.0)))
    assert file.stat().st_size < 4096
    told = json.loads(file.read_text())
    assert told["name"] == name_of(SETTING)
    assert told["name"].startswith("diloco-equal-warm-s3-")
    assert told["setting"]["method"]["inner_steps"] == 4
    assert told["outcome"]["loss"] == 1.23457
    scratch = replace(SETTING, method=AllReduceMethod(), warm_steps=0)
    assert name_of(scratch).startswith("allreduce-equal-scratch-s3-")


def test_a_line_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    keep(file, SETTING, outcome(1.0))
    file.write_bytes(file.read_bytes()[:-9])
    assert kept(file, SETTING) is None
    keep(file, SETTING, outcome(2.0))
    assert kept(file, SETTING) == outcome(2.0)


def test_an_outcome_with_another_default_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    keep(file, SETTING, outcome(1.0))
    file.write_text(file.read_text().replace('"outer_momentum": 0.5', '"outer_momentum": 0.9'))
    assert kept(file, SETTING) is None


@pytest.mark.parametrize("rest", [" 1}", ' "setting": {}, "outcome": {"loss": 1}}', "}"])
def test_a_line_that_is_no_outcome_is_an_error(tmp_path: Path, rest: str) -> None:
    file = tmp_path / "outcomes.jsonl"
    file.write_text(f'\n{{"name": "{name_of(SETTING)}",{rest}\n')
    with pytest.raises(ConfigError, match=r"line 2 of .* is no outcome .* remove it"):
        kept(file, SETTING)


def test_results_of_another_text_are_not_compared() -> None:
    check_corpus([outcome(1.0), outcome(None)], "f" * 64)
    with pytest.raises(ConfigError, match=r"text with digest ffffffff, .* has aaaaaaaa: use the"):
        check_corpus([outcome(1.0)], "a" * 64)
