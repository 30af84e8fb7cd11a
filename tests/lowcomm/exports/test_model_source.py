"""Which checkpoint is exported, and what its model is said to be."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lowcomm.checkpoints.checkpoint import CUT, MODEL, CheckpointError
from lowcomm.checkpoints.frozen_file import FROZEN
from lowcomm.config.schema import DataConfig, RunConfig
from lowcomm.data.tokenizer import fingerprint_of
from lowcomm.exports.model_source import find_model
from lowcomm.models.shapes import llama_shapes
from lowcomm.startup.identity import RECORD
from protocols.types.errors import ConfigError
from tests.lowcomm.exports.written_runs import MODEL as LLAMA
from tests.lowcomm.exports.written_runs import Written, built_in, write_node


def test_of_a_run_it_is_the_checkpoint_with_most_tokens(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_node(run / "alpha", built_in(), (3, 6))
    newest = write_node(run / "beta", built_in(), (4, 5), tokens=9999)
    (run / "gamma").mkdir()
    shutil.copy(run / "beta" / RECORD, run / "gamma")  # It has written none yet.
    found = find_model(run)
    assert (found.path, found.node, found.cut.round) == (newest, "beta", 5)
    assert (found.built_in, found.frozen, found.skipped) == (LLAMA, None, ())
    assert found.run == RunConfig(model=LLAMA)
    assert found.files == (newest / MODEL,)
    assert find_model(run / "alpha").cut.round == 6
    assert find_model(run / "alpha" / "checkpoints" / "round-000003").cut.round == 3


def test_a_torn_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    alpha = tmp_path / "alpha"
    torn = write_node(alpha, built_in(), (3, 6))
    whole = (torn / MODEL).read_bytes()
    (torn / MODEL).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = find_model(alpha)
    assert found.cut.round == 3
    (line,) = found.skipped
    assert line.startswith("alpha: round-000006: model.safetensors is corrupt")
    with pytest.raises(CheckpointError, match=r"round-000006: model\.safetensors is corrupt"):
        find_model(torn)
    shutil.rmtree(alpha / "checkpoints" / "round-000003")
    with pytest.raises(ConfigError, match=r"alpha has no complete checkpoint .*round-000006.*`low"):
        find_model(alpha)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere does not exist: give the directory of a run"):
        find_model(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no node"):
        find_model(tmp_path)


def test_the_model_of_a_program_is_not_taken_for_the_built_in_one(tmp_path: Path) -> None:
    written = built_in()
    write_node(tmp_path / "own", replace(written, command=("python", "train.py")))
    assert find_model(tmp_path / "own").built_in is None
    other = {**written.shapes, "more.weight": (3,)}
    write_node(tmp_path / "other", replace(written, shapes=other))
    assert find_model(tmp_path / "other").built_in is None
    private = RunConfig(model=LLAMA, data=DataConfig(source="private"))
    write_node(tmp_path / "private", replace(written, run=private))
    assert find_model(tmp_path / "private").built_in is None


def test_a_checkpoint_alone_says_what_run_it_is_of(tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    write_node(tmp_path / "alpha", built_in()).rename(moved)
    found = find_model(moved)
    assert (found.built_in, found.node) == (LLAMA, "alpha")


def test_frozen_tensors_belong_to_the_model(tmp_path: Path) -> None:
    write_node(tmp_path / "alpha", Written(run=RunConfig(), shapes={"a": (2,), "b": (3,)}))
    (tmp_path / "alpha" / FROZEN).touch()
    found = find_model(tmp_path / "alpha")
    assert found.files == (found.path / MODEL, tmp_path / "alpha" / FROZEN)
    assert (found.path / CUT).exists()


def test_the_tokenizer_is_that_of_the_run(tmp_path: Path) -> None:
    path, other = tmp_path / "tokenizer.json", tmp_path / "other.json"
    path.write_text('{"model": {"vocab": {"a": 0}}}', encoding="utf-8")
    other.write_text('{"model": {"vocab": {"b": 0}}}', encoding="utf-8")
    data = DataConfig(tokenizer=fingerprint_of(path.read_bytes()))
    run = RunConfig(model=LLAMA, data=data)
    write_node(tmp_path / "alpha", Written(run=run, shapes=llama_shapes(LLAMA)))
    found = find_model(tmp_path / "alpha")
    assert not found.tokens_are_bytes
    assert found.tokenizer is None, "its node does not name the file"
    assert found.with_tokenizer(path).tokenizer == path
    with pytest.raises(ConfigError, match="is not the run's tokenizer, which has another one"):
        found.with_tokenizer(other)
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.json"):
        found.with_tokenizer(tmp_path / "missing.json")


def test_a_tokenizer_file_that_changed_since_is_not_the_runs(tmp_path: Path) -> None:
    path, kept = tmp_path / "tokenizer.json", tmp_path / "kept.json"
    kept.write_text('{"model": {"vocab": {"a": 0}}}', encoding="utf-8")
    data = DataConfig(tokenizer=fingerprint_of(kept.read_bytes()))
    run = RunConfig(model=LLAMA, data=data)
    shutil.copy(kept, path)
    written = Written(run=run, shapes=llama_shapes(LLAMA), tokenizer=str(path))
    write_node(tmp_path / "alpha", written)
    assert find_model(tmp_path / "alpha").tokenizer == path
    for content in ('{"model": {"vocab": {"b": 0}}}', "no JSON"):
        path.write_text(content, encoding="utf-8")
        found = find_model(tmp_path / "alpha")
        assert found.tokenizer is None
        assert found.with_tokenizer(kept).tokenizer == kept
    path.unlink()
    assert find_model(tmp_path / "alpha").tokenizer is None


def test_the_node_s_tokenizer_may_be_below_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": 1}')
    run = RunConfig(model=LLAMA, data=DataConfig(tokenizer=fingerprint_of(path.read_bytes())))
    written = Written(run=run, shapes=llama_shapes(LLAMA), tokenizer="~/tokenizer.json")
    write_node(tmp_path / "alpha", written)
    assert find_model(tmp_path / "alpha").tokenizer == path


def test_a_run_of_bytes_has_no_tokenizer_of_its_own(tmp_path: Path) -> None:
    write_node(tmp_path / "alpha", built_in())
    path = tmp_path / "tokenizer.json"
    path.write_text("{}", encoding="utf-8")
    found = find_model(tmp_path / "alpha")
    assert found.tokens_are_bytes
    with pytest.raises(ConfigError, match="which has none: its tokens are bytes"):
        found.with_tokenizer(path)
