"""FlexDeMo under FSDP2: what ranks compress does not depend on how many they are."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lowcomm.flexdemo.method import check_sgd, gradient_rows, group_of
from lowcomm.tensors.fsdp import node_shards
from protocols.types.errors import ConfigError
from tests.lowcomm.forking import run_ranks


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(150)
def test_the_same_gradient_makes_the_same_payloads_on_one_to_four_ranks(tmp_path: Path) -> None:
    found: dict[int, bytes] = {}
    for world in (1, 2, 3, 4):
        directory = tmp_path / str(world)
        directory.mkdir()
        run_ranks("flexdemo_ranks.py", world, directory)
        found[world] = (directory / "payloads.bin").read_bytes()
    assert any(found[1])
    assert [world for world, payloads in found.items() if payloads != found[1]] == []


def test_a_plain_model_has_its_rows_whole_and_no_group() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 2), nn.Linear(4, 6, bias=False))
    shards = node_shards(model, rank=0).shards
    assert group_of(shards) is None
    model[0].weight.grad = torch.arange(60.0).reshape(5, 3, 2, 2)
    rows = [gradient_rows(shard) for shard in shards]
    assert [tuple(each.shape) for each in rows] == [(5, 12), (5, 1), (6, 4)]
    assert torch.equal(rows[0].reshape(-1), torch.arange(60.0))
    assert not rows[1].any(), "it has no gradient"


def test_an_optimizer_that_steps_otherwise_is_refused_with_what_to_set() -> None:
    parameters = [nn.Parameter(torch.zeros(3))]
    check_sgd(torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1), "flexdemo")
    with pytest.raises(ConfigError, match=r'is AdamW.*set run.method.step = "adamw"'):
        check_sgd(torch.optim.AdamW(parameters, lr=0.1), "flexdemo")
    with pytest.raises(ConfigError, match="set momentum=0"):
        check_sgd(torch.optim.SGD(parameters, lr=0.1, momentum=0.9), "flexdemo")
