"""What came of a setting is read as it was written, or not at all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.comparing.kept import check_corpus, file_of, keep, kept
from lowcomm.methods import AllReduce
from protocols.types.errors import ConfigError
from tests.benchmarks.comparing.tiny import SETTING, outcome


@pytest.mark.parametrize("loss", [1.23456, None])
def test_an_outcome_is_kept_the_failed_one_too(tmp_path: Path, loss: float | None) -> None:
    assert kept(tmp_path / "none", SETTING) is None
    keep(tmp_path / "new", SETTING, outcome(loss))
    assert kept(tmp_path / "new", SETTING) == outcome(loss)
    assert kept(tmp_path / "new", replace(SETTING, seed=4)) is None
    assert [each.name for each in (tmp_path / "new").iterdir()] == [file_of(tmp_path, SETTING).name]


def test_a_file_says_what_it_is_and_is_small(tmp_path: Path) -> None:
    keep(tmp_path, SETTING, outcome(1.23456789, waited=(0.123456, 0.0)))
    path = file_of(tmp_path, SETTING)
    assert path.name.startswith("diloco-equal-warm-s3-")
    assert path.stat().st_size < 4096
    told = json.loads(path.read_text())
    assert told["setting"]["method"]["inner_steps"] == 4
    assert told["outcome"]["loss"] == 1.23457
    scratch = replace(SETTING, method=AllReduce(), warm_steps=0)
    assert file_of(tmp_path, scratch).name.startswith("allreduce-equal-scratch-s3-")


def test_a_result_of_another_default_is_none_of_ours(tmp_path: Path) -> None:
    keep(tmp_path, SETTING, outcome(1.0))
    path = file_of(tmp_path, SETTING)
    path.write_text(path.read_text().replace('"outer_momentum": 0.5', '"outer_momentum": 0.9'))
    assert kept(tmp_path, SETTING) is None


@pytest.mark.parametrize("text", ["", "{}", '{"setting": {}, "outcome": {"loss": 1}}', "[]"])
def test_what_is_no_result_is_said(tmp_path: Path, text: str) -> None:
    path = file_of(tmp_path, SETTING)
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"s3-\w+.json is no result .* remove it"):
        kept(tmp_path, SETTING)


def test_results_of_another_text_are_not_compared() -> None:
    check_corpus([outcome(1.0), outcome(None)], "f" * 64)
    with pytest.raises(ConfigError, match=r"text with digest ffffffff, .* has aaaaaaaa: use the"):
        check_corpus([outcome(1.0)], "a" * 64)
