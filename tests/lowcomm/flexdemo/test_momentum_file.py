"""A node's momentum on disk: what fits exactly comes back, and nothing else does."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch

from lowcomm.flexdemo.momentum_file import load_momentum, save_momentum
from lowcomm.loop_state.rank_checkpoint import HEADER, RankFile

SHAPES = [(5, 3), (0, 7), (4, 1)]


def saved(directory: Path) -> RankFile:
    file = RankFile(directory / "made" / "here", 1, 2)
    save_momentum(file, (12, [torch.full(shape, 0.3) for shape in SHAPES]))
    return file


def test_momentum_comes_back_with_its_step(tmp_path: Path) -> None:
    file = saved(tmp_path)
    found = load_momentum(file, SHAPES)
    assert found is not None
    assert found[0] == 12
    for shape, each in zip(SHAPES, found[1], strict=True):
        assert torch.equal(each, torch.full(shape, 0.3))
    assert [path.name for path in file.directory.iterdir()] == ["rank-1-of-2.safetensors"]


@pytest.mark.parametrize(
    "shapes", [[], SHAPES[:2], [*SHAPES, (1, 1)], [(3, 5), *SHAPES[1:]], [(5, 4), *SHAPES[1:]]]
)
def test_momentum_of_another_model_is_none(shapes: list[tuple[int, int]], tmp_path: Path) -> None:
    assert load_momentum(saved(tmp_path), shapes) is None


def test_momentum_of_another_rank_is_none(tmp_path: Path) -> None:
    file = saved(tmp_path)
    for other in (RankFile(file.directory, 0, 2), RankFile(file.directory, 1, 3)):
        assert load_momentum(other, SHAPES) is None
        other.path.write_bytes(file.path.read_bytes())
        assert load_momentum(other, SHAPES) is None


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    file = saved(tmp_path)
    whole = file.path.read_bytes()
    for damaged in (b"", b"x", whole[:-1], whole[: len(whole) // 2], bytes(len(whole))):
        file.path.write_bytes(damaged)
        assert load_momentum(file, SHAPES) is None


@pytest.mark.parametrize("change", [{"schema": 2}, {"step": "late"}, {"step": None}, {"more": 1}])
def test_a_header_that_does_not_fit_is_none(change: dict[str, object], tmp_path: Path) -> None:
    file = saved(tmp_path)
    with cast(Any, safetensors.safe_open(file.path, framework="pt")) as opened:
        header = json.loads(opened.metadata()[HEADER])
    tensors = safetensors.torch.load_file(file.path)
    safetensors.torch.save_file(tensors, file.path, {HEADER: json.dumps(header)})
    assert load_momentum(file, SHAPES) is not None
    for metadata in ({HEADER: json.dumps(header | change)}, {HEADER: "[]"}, None):
        safetensors.torch.save_file(tensors, file.path, metadata)
        assert load_momentum(file, SHAPES) is None
    doubles = {name: each.double() for name, each in tensors.items()}
    safetensors.torch.save_file(doubles, file.path, {HEADER: json.dumps(header)})
    assert load_momentum(file, SHAPES) is None
