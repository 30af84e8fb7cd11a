"""The files of an export: what they hold, and that they are there whole or not at all."""

import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors import numpy as files
from torch import nn
from torch.distributed import checkpoint

from lowcomm.checkpoints.frozen_file import FROZEN
from lowcomm.config.schema import RunConfig
from lowcomm.exports import formats
from lowcomm.exports.formats import INDEX, new_directory, write_dcp, write_hf
from lowcomm.exports.model_source import find_model
from lowcomm.models.llama import Llama
from protocols.types.errors import ConfigError
from tests.lowcomm import node_ranks
from tests.lowcomm.exports.written_runs import MODEL, Written, built_in, write_node
from tests.lowcomm.forking import run_ranks

OWN = Written(
    run=RunConfig(),
    shapes={
        "0.weight": (3, 2),
        "1.weight": (3,),
        "1.bias": (3,),
        "1.running_mean": (3,),
        "1.running_var": (3,),
        "1.num_batches_tracked": (),
    },
    command=("python", "train.py"),
)

ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
"""torch warns of a load in a single process."""


def test_the_built_in_model_comes_with_all_that_loaders_read(tmp_path: Path) -> None:
    path = write_node(tmp_path / "alpha", built_in())
    with new_directory(tmp_path / "out") as place:
        write_hf(find_model(tmp_path / "alpha"), place)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    exported = tmp_path / "out" / "model.safetensors"
    assert exported.read_bytes() == (path / "model.safetensors").read_bytes()
    assert exported.stat().st_ino != (path / "model.safetensors").stat().st_ino


def test_the_model_of_a_program_keeps_its_names_and_has_no_configuration(tmp_path: Path) -> None:
    write_node(tmp_path / "alpha", OWN)
    with new_directory(tmp_path / "out") as place:
        write_hf(find_model(tmp_path / "alpha"), place)
    (only,) = (tmp_path / "out").iterdir()
    assert files.load_file(only).keys() == OWN.shapes.keys()


def test_frozen_tensors_are_a_second_file_that_an_index_names(tmp_path: Path) -> None:
    write_node(tmp_path / "alpha", OWN)
    files.save_file({"base.weight": np.ones((4, 2), np.float16)}, tmp_path / "alpha" / FROZEN)
    with new_directory(tmp_path / "out") as place:
        write_hf(find_model(tmp_path / "alpha"), place)
    index = json.loads((tmp_path / "out" / INDEX).read_text(encoding="utf-8"))
    named = index["weight_map"]
    assert named.keys() == {*OWN.shapes, "base.weight"}
    for name, file in named.items():
        assert name in files.load_file(tmp_path / "out" / file)
    assert index["metadata"]["total_size"] == 4 * sum(OWN.sizes) + 16


@ALONE
@pytest.mark.parametrize("tied", [False, True])
def test_torch_loads_it_into_the_built_in_model(tmp_path: Path, *, tied: bool) -> None:
    config = replace(MODEL, tied_embeddings=tied)
    path = write_node(tmp_path / "alpha", built_in(config))
    with new_directory(tmp_path / "out") as place:
        write_dcp(find_model(tmp_path / "alpha"), place)
    model = Llama(config)
    state = model.state_dict()
    cast(Any, checkpoint).load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    model.load_state_dict(state)
    expected = files.load_file(path / "model.safetensors")
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), expected[name])


@pytest.mark.long
@pytest.mark.deadline(100)
def test_torch_loads_it_into_a_sharded_model(tmp_path: Path) -> None:
    parameters = node_ranks.build("dcp").named_parameters()
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters}
    written = Written(run=RunConfig(), shapes=shapes, command=("python", "train.py"))
    path = write_node(tmp_path / "alpha", written)
    with new_directory(tmp_path / "out") as place:
        write_dcp(find_model(tmp_path / "alpha"), place)
    run_ranks("node_ranks.py", "dcp", 2, tmp_path)
    found = files.load_file(path / "model.safetensors")
    expected = np.concatenate([found[name].reshape(-1) for name in shapes])
    for rank in (0, 1):
        seen = json.loads((tmp_path / f"rank-{rank}.json").read_text(encoding="utf-8"))
        assert np.array_equal(np.array(seen, np.float32), expected)


@ALONE
def test_torch_loads_buffers_and_frozen_tensors_too(tmp_path: Path) -> None:
    path = write_node(tmp_path / "alpha", OWN)
    files.save_file({"2.weight": np.full((2, 3), 7, np.float32)}, tmp_path / "alpha" / FROZEN)
    with new_directory(tmp_path / "out") as place:
        write_dcp(find_model(tmp_path / "alpha"), place)
    model = nn.Sequential(
        nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False)
    )
    state = model.state_dict()
    cast(Any, checkpoint).load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    model.load_state_dict(state)
    found = files.load_file(path / "model.safetensors")
    assert torch.equal(state["2.weight"], torch.full((2, 3), 7.0))
    assert np.array_equal(state["1.running_var"].numpy(), found["1.running_var"])
    assert state["1.num_batches_tracked"] == int(found["1.num_batches_tracked"])


@ALONE
def test_a_disk_that_refuses_a_checkpoint_of_torch_is_an_error_of_the_system(
    tmp_path: Path,
) -> None:
    write_node(tmp_path / "alpha", OWN)
    big = {"big": np.zeros(1 << 16, np.float32)}
    files.save_file(big, tmp_path / "alpha" / FROZEN)
    source, limits = find_model(tmp_path / "alpha"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, limits[1]))  # EFBIG instead of ENOSPC.
    try:
        with (
            pytest.raises(OSError, match=r"cannot write .*out\.writing.*disk full"),
            new_directory(tmp_path / "out") as place,
        ):
            write_dcp(source, place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [each.name for each in tmp_path.iterdir()] == ["alpha"]


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    for name in ("full", "file"):
        with (
            pytest.raises(ConfigError, match=f"{name} exists and is not an empty directory"),
            new_directory(tmp_path / name),
        ):
            pass
    (tmp_path / "empty").mkdir()
    with new_directory(tmp_path / "empty") as place:
        (place / "model").touch()
    assert [each.name for each in (tmp_path / "empty").iterdir()] == ["model"]


def test_a_link_stays_and_its_target_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in ("empty", "new"):
        (tmp_path / f"link-{target}").symlink_to(tmp_path / target)
        with new_directory(tmp_path / f"link-{target}") as place:
            (place / "model").touch()
        assert [each.name for each in (tmp_path / target).iterdir()] == ["model"]
        assert (tmp_path / f"link-{target}").is_symlink()


def test_a_directory_that_cannot_be_replaced_is_told_before_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="give a new name, as in model"), new_directory(Path()):
        pytest.fail("it is written")
    monkeypatch.chdir("/")

    def mounted(_: Path) -> bool:
        return True

    monkeypatch.setattr(formats.os.path, "ismount", mounted)
    with pytest.raises(ConfigError, match="a disk is mounted there"), new_directory(tmp_path):
        pytest.fail("it is written")


def test_after_an_error_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write_node(tmp_path / "alpha", built_in())
    monkeypatch.setattr(formats.shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"), new_directory(tmp_path / "out") as place:
        write_hf(find_model(tmp_path / "alpha"), place)
    assert [each.name for each in tmp_path.iterdir()] == ["alpha"]
