"""A setting's outcome, its evaluation, and its warm start."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.comparing import training
from benchmarks.comparing.kept import kept
from benchmarks.comparing.settings import recorded
from benchmarks.comparing.training import main, train, warm_file, warm_start
from lowcomm.config.schema import DataConfig
from lowcomm.data.corpus import Corpus, build_corpus
from lowcomm.methods import AllReduceMethod
from lowcomm.models.llama import build_model
from lowcomm.program.evaluate import held_out_loss
from protocols.types.errors import ConfigError
from tests.benchmarks.comparing.tiny import BATCHES, CORPUS, DATA, SETTING


def test_a_setting_repeats_and_its_curve_begins_with_the_warm_start(tmp_path: Path) -> None:
    state = warm_start(SETTING, CORPUS, tmp_path)
    one, other = (train(SETTING, CORPUS, state) for _ in range(2))
    assert one.curve == other.curve
    model = build_model(SETTING.model, seed=SETTING.seed)
    model.load_state_dict(
        {name: state[f"parameter:{name}"] for name, _ in model.named_parameters()}
    )
    expected = held_out_loss(model, CORPUS.held_out, windows=20, window=8, seed=SETTING.seed)
    assert one.curve[0] == (4, pytest.approx(expected, rel=1e-6))
    assert [step for step, _ in one.curve] == [4, 12]
    assert one.loss == one.curve[-1][1]
    assert (one.error, one.corpus) == ("", CORPUS.digest)
    assert one.tokens == SETTING.own_tokens


def test_the_loss_is_evaluates_own_on_what_the_run_leaves() -> None:
    setting = replace(SETTING, method=AllReduceMethod(), warm_steps=0, steps=2)
    found = train(setting, CORPUS, None)
    group = training.group_of(setting, BATCHES, None)
    for step in range(2):
        group.make_step(step)
    expected = held_out_loss(
        group.evaluated, CORPUS.held_out, windows=20, window=8, seed=setting.seed
    )
    assert found.loss == pytest.approx(expected, rel=1e-6)


def test_evaluations_come_at_equal_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "EVAL_STEPS", 3)
    found = train(replace(SETTING, warm_steps=0, steps=8), CORPUS, None)
    assert [step for step, _ in found.curve] == [0, 3, 6, 8]


def test_a_run_that_diverges_says_so() -> None:
    wild = replace(
        SETTING,
        method=AllReduceMethod(),
        warm_steps=0,
        optimizer=replace(SETTING.optimizer, lr=1e30, grad_clip=0.0),
    )
    found = train(wild, CORPUS, None)
    assert found.loss is None
    assert found.error.startswith("the held-out loss was nan after")


def test_a_method_whose_steps_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEP_GROUPS", {})
    with pytest.raises(ConfigError, match="allreduce cannot be compared yet"):
        train(replace(SETTING, method=AllReduceMethod()), CORPUS, None)


def test_a_warm_start_is_made_once_for_all_settings_that_have_it(tmp_path: Path) -> None:
    made = warm_start(SETTING, CORPUS, tmp_path)
    path = warm_file(SETTING, CORPUS, tmp_path)
    written = path.stat().st_mtime_ns
    again = warm_start(replace(SETTING, world="churn"), CORPUS, tmp_path)
    assert path.stat().st_mtime_ns == written
    assert all(torch.equal(made[name], again[name]) for name in made)
    other = replace(SETTING, seed=4)
    assert warm_file(other, CORPUS, tmp_path) != path
    text = Corpus(CORPUS.train, CORPUS.held_out, "e" * 64)
    assert warm_file(SETTING, text, tmp_path) != path


def test_the_program_keeps_what_came_of_a_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words"
    words.mkdir()
    for number in range(40):
        content = np.random.default_rng(number).bytes(500)
        (words / f"{number}.txt").write_bytes(content)
    data = DataConfig(source="files", held_out_below=64, window=8, batch=2, eval_window=8)
    build_corpus(data, folder=str(words), directory=tmp_path / "text")
    setting = replace(SETTING, data=replace(DATA, source="files", held_out_below=64))
    argv = [json.dumps(recorded(setting)), str(tmp_path / "outcomes"), str(tmp_path / "text")]
    assert main(["--warm", *argv]) == 0
    assert kept(tmp_path / "outcomes", setting) is None
    assert main(argv) == 0
    found = kept(tmp_path / "outcomes", setting)
    assert found is not None
    assert found.loss is not None
    assert main([*argv[:2], str(tmp_path / "none")]) == 1
    assert "error: no complete corpus in" in capsys.readouterr().err
