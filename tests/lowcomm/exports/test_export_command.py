"""The command `lowcomm export`, without daemons."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as files

from lowcomm.checkpoints.frozen_file import FROZEN
from lowcomm.config.schema import RunConfig
from lowcomm.exports import formats
from lowcomm.exports.export_command import Format, export
from lowcomm.methods import NoLoCoMethod
from protocols.types.ids import FrozenTensor
from tests.lowcomm.exports.written_runs import MODEL, Written, built_in, write_node


def test_it_tells_of_which_state_the_export_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_node(tmp_path / "alpha", built_in(), (3, 12))
    export(tmp_path / "alpha", tmp_path / "out")
    first, second = capsys.readouterr().out.splitlines()
    tensors = 3 + 9 * MODEL.layers
    assert first == (
        f"{tmp_path}/out: {tensors} tensors of round 12 of alpha (inner step 120, 12,000 "
        "committed tokens)"
    )
    assert second == (
        f"load it: transformers.AutoModelForCausalLM.from_pretrained('{tmp_path}/out')"
    )
    export(tmp_path / "alpha", tmp_path / "dcp", Format.DCP)
    assert "torch.distributed.checkpoint.load(" in capsys.readouterr().out


def test_it_says_that_a_model_is_a_programs_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunConfig(method=NoLoCoMethod(), peers_min=2)
    write_node(tmp_path / "alpha", Written(run=run, shapes={"a": (2,), "b": (3,)}, command=("x",)))
    export(tmp_path / "alpha", tmp_path / "out")
    out = capsys.readouterr().out
    assert "this is that of alpha" in out
    assert "names of parameters and buffers are as in your program" in out


def test_a_model_without_its_frozen_tensors_is_told_as_not_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = (FrozenTensor("base.weight", "F16", (4, 2), 7), FrozenTensor("c", "F16", (2,), 8))
    written = Written(run=RunConfig(), shapes={"a": (2,), "b": (3,)}, command=("x",), frozen=frozen)
    write_node(tmp_path / "alpha", written)
    export(tmp_path / "alpha", tmp_path / "out")
    assert "not complete: without 2 tensors that the run does" in capsys.readouterr().out
    files.save_file({"base.weight": np.ones((4, 2), np.float16)}, tmp_path / "alpha" / FROZEN)
    export(tmp_path / "alpha", tmp_path / "whole")
    out = capsys.readouterr().out
    assert "not complete" not in out
    assert "with the tensors that the run does not train" in out


def test_a_checkpoint_that_is_deleted_meanwhile_is_replaced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = write_node(tmp_path / "alpha", built_in(), (3, 6))
    copied = shutil.copyfile

    def copy(source: Path, target: Path) -> Any:
        shutil.rmtree(newest, ignore_errors=True)
        return copied(source, target)

    monkeypatch.setattr(formats.shutil, "copyfile", copy)
    export(tmp_path / "alpha", tmp_path / "out")
    assert "of round 3 of alpha" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").exists()
