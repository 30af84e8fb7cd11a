"""A node that starts with another number of ranks goes on with its optimizer's state."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import nn

from lowcomm.loop_state.rank_checkpoint import HEADER, RankFile
from lowcomm.loop_state.resharded_state import load_resharded
from tests.lowcomm.forking import run_ranks
from tests.lowcomm.node_ranks import save_rank_state
from tests.marks import LONG, NIGHTLY


def state_of(directory: Path, world: int) -> dict[str, Any]:
    """The whole state that so many ranks loaded or, if they found none, made."""
    run_ranks("node_ranks.py", "resharded", world, directory)
    seen = [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(world)]
    assert all(each == seen[0] for each in seen)
    return seen[0]


@pytest.mark.deadline(100)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(2, 3, marks=LONG),
        pytest.param(2, 1, marks=NIGHTLY),
        pytest.param(1, 2, marks=NIGHTLY),
        pytest.param(3, 2, marks=NIGHTLY),
    ],
)
def test_shards_are_cut_anew(before: int, after: int, tmp_path: Path) -> None:
    made = state_of(tmp_path, before)
    assert not made["found"]
    assert state_of(tmp_path, after) == {**made, "found": True}


def model() -> nn.Module:
    return nn.Linear(3, 2)


def trained(
    files: list[RankFile],
    build: type[torch.optim.AdamW | torch.optim.RMSprop] = torch.optim.AdamW,
) -> None:
    """Ranks that each hold the whole model have trained a step, and saved that."""
    module = model()
    optimizer = build(module.parameters(), 0.1)
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    for file in files:
        save_rank_state(file, dict(module.named_parameters()), optimizer)


def loads(file: RankFile, module: nn.Module | None = None) -> bool:
    module = module or model()
    optimizer = torch.optim.AdamW(module.parameters())
    found = load_resharded(file, dict(module.named_parameters()), optimizer)
    assert bool(optimizer.state) == found
    return found


def test_only_a_complete_state_of_the_same_model_and_optimizer_is_used(tmp_path: Path) -> None:
    mine = RankFile(tmp_path, 0, 3)
    assert not loads(mine)
    two = [RankFile(tmp_path, rank, 2) for rank in range(2)]
    trained(two[:1])
    assert not loads(mine), "one rank's file is not there"
    trained(two)
    assert loads(mine)
    assert not loads(mine, nn.Linear(3, 4))
    assert not loads(mine, nn.Linear(3, 2, bias=False))
    two[1].path.write_bytes(two[1].path.read_bytes()[:-1])
    assert not loads(mine), "it is damaged"
    trained(two, torch.optim.RMSprop)
    assert not loads(mine)


def test_the_newest_number_of_ranks_counts(tmp_path: Path) -> None:
    two, one = [RankFile(tmp_path, rank, 2) for rank in range(2)], RankFile(tmp_path, 0, 1)
    trained([*two, one])
    change(one, {"parameters": {}})
    assert not loads(replace(one, world_size=3)), "it is the newest"
    trained(two)
    assert loads(replace(one, world_size=3))


@pytest.mark.parametrize(
    "locals_", [[[2, 3], [1, 3]], [[1, 3], [2, 3]], [[1, 2], [1, 2]], [[1, 3], [1, 2]]]
)
def test_parts_that_do_not_make_the_whole_are_no_state(
    tmp_path: Path, locals_: list[list[int]]
) -> None:
    two = [RankFile(tmp_path, rank, 2) for rank in range(2)]
    trained(two)
    for file, local in zip(two, locals_, strict=True):
        change(file, {"parameters": {"weight": [[2, 3], local], "bias": [[2], [2]]}}, local)
    assert not loads(replace(two[0], world_size=1))


def change(file: RankFile, header: dict[str, Any], local: list[int] | None = None) -> None:
    """Write the file again with these fields, and with parts of that shape of the weight."""
    with cast(Any, safetensors.safe_open(file.path, framework="pt")) as opened:
        old: dict[str, Any] = json.loads(opened.metadata()[HEADER])
    tensors = safetensors.torch.load_file(file.path)
    sharded: list[str] = []
    for entry in tensors:
        if local is not None and entry.startswith("exp") and entry.endswith("weight"):
            tensors[entry] = torch.zeros(local)
            sharded.append(entry)
    metadata = {HEADER: json.dumps({**old, **header, "sharded": sharded})}
    safetensors.torch.save_file(tensors, file.path, metadata)
