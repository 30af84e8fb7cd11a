"""A node's momentum on disk: what fits exactly comes back, and nothing else does."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch

from lowcomm.flexdemo.momentum_file import Kept, load_momentum, save_momentum
from lowcomm.flexdemo.row_exchange import Rows
from lowcomm.loop_state.rank_checkpoint import HEADER, RankFile

SHAPES = [(8, 3), (2, 7), (4, 1)]
ROWS = [[Rows(0, 4), Rows(0, 2), Rows(0, 4)], [Rows(4, 8), Rows(2, 2), Rows(4, 4)]]
"""Of two ranks, in groups of four rows."""
WHOLE = [torch.rand(shape) for shape in SHAPES]


def cut(rank: int) -> list[torch.Tensor]:
    return [each[rows.first : rows.stop] for each, rows in zip(WHOLE, ROWS[rank], strict=True)]


def saved(directory: Path) -> RankFile:
    """Both ranks have saved theirs; returns the file of the first one."""
    files = [RankFile(directory / "made" / "here", rank, 2) for rank in range(2)]
    for file in files:
        save_momentum(file, (12, cut(file.rank)))
    return files[0]


def loaded(file: RankFile, shapes: Sequence[tuple[int, int]] = SHAPES) -> Kept | None:
    """As rank 0 of two."""
    return load_momentum(file, ROWS[0][: len(shapes)], shapes)


def test_momentum_comes_back_with_its_step(tmp_path: Path) -> None:
    file = saved(tmp_path)
    for rank in range(2):
        found = load_momentum(replace(file, rank=rank), ROWS[rank], SHAPES)
        assert found is not None
        assert found[0] == 12
        assert all(map(torch.equal, found[1], cut(rank)))
    assert sorted(path.name for path in file.directory.iterdir()) == [
        "rank-0-of-2.safetensors",
        "rank-1-of-2.safetensors",
    ]


def test_another_number_of_ranks_gets_the_rows_that_each_one_owns(tmp_path: Path) -> None:
    file = saved(tmp_path)
    rows = [Rows(2, 7), Rows(0, 2), Rows(1, 1)]
    found = load_momentum(replace(file, rank=1, world_size=3), rows, SHAPES)
    assert found is not None
    assert found[0] == 12
    for mine, whole, each in zip(found[1], WHOLE, rows, strict=True):
        assert torch.equal(mine, whole[each.first : each.stop])
    alone = [Rows(0, rows) for rows, _ in SHAPES]
    found = load_momentum(replace(file, world_size=1), alone, SHAPES)
    assert found is not None
    assert all(map(torch.equal, found[1], WHOLE))


def test_momentum_of_different_steps_or_of_a_part_of_the_ranks_is_none(tmp_path: Path) -> None:
    file = saved(tmp_path)
    three = replace(file, world_size=3)
    assert loaded(three) is not None
    save_momentum(replace(file, rank=1), (13, cut(1)))
    assert loaded(three) is None
    saved(tmp_path)
    (file.directory / "rank-1-of-2.safetensors").unlink()
    assert loaded(three) is None
    assert loaded(file) is None, "its own one is of another step than zero momentum of the other"


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("shapes", [SHAPES[:2], [(9, 3), *SHAPES[1:]], [(8, 4), *SHAPES[1:]]])
def test_momentum_of_another_model_is_none(
    shapes: list[tuple[int, int]], world_size: int, tmp_path: Path
) -> None:
    file = replace(saved(tmp_path), world_size=world_size)
    rows = [Rows(0, shape[0]) for shape in shapes]
    assert load_momentum(file, rows, shapes) is None


def test_momentum_of_another_rank_is_none(tmp_path: Path) -> None:
    file = saved(tmp_path)
    file.path.write_bytes(replace(file, rank=1).path.read_bytes())
    assert loaded(file) is None
    assert loaded(replace(file, world_size=3)) is None


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    file = saved(tmp_path)
    whole = file.path.read_bytes()
    for damaged in (b"", b"x", whole[:-1], whole[: len(whole) // 2], bytes(len(whole))):
        file.path.write_bytes(damaged)
        assert loaded(file) is None


@pytest.mark.parametrize("change", [{"schema": 2}, {"step": "late"}, {"step": None}, {"more": 1}])
def test_a_header_that_does_not_fit_is_none(change: dict[str, object], tmp_path: Path) -> None:
    file = saved(tmp_path)
    with cast(Any, safetensors.safe_open(file.path, framework="pt")) as opened:
        header = json.loads(opened.metadata()[HEADER])
    tensors = safetensors.torch.load_file(file.path)
    safetensors.torch.save_file(tensors, file.path, {HEADER: json.dumps(header)})
    assert loaded(file) is not None
    for metadata in ({HEADER: json.dumps(header | change)}, {HEADER: "[]"}, None):
        safetensors.torch.save_file(tensors, file.path, metadata)
        assert loaded(file) is None
    doubles = {name: each.double() for name, each in tensors.items()}
    safetensors.torch.save_file(doubles, file.path, {HEADER: json.dumps(header)})
    assert loaded(file) is None
