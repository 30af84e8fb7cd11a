"""Names of parameters: wrappers of torch leave no trace in them, a user's attributes do."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from lowcomm.tensors.names import named_parameters
from protocols.types.errors import ConfigError


class Own(nn.Module):
    """Has attributes that are named like those of wrappers, and a tied parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self._orig_mod = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.blocks[1].weight = self.blocks[0].weight

    def forward(self, x_B2: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](self._orig_mod(self.module(x_B2))))


NAMES = [
    *("module.weight", "module.bias", "_orig_mod.weight", "_orig_mod.bias"),
    *("blocks.0.weight", "blocks.0.bias", "blocks.1.bias"),
]


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank, which the wrappers of data parallelism need."""
    store = cast(Any, dist).HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def compiled(model: nn.Module) -> nn.Module:
    return cast(nn.Module, torch.compile(model))


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in named_parameters(model)]


def test_a_plain_models_parameters_have_its_own_names_in_its_own_order() -> None:
    model = Own()
    assert named_parameters(model) == list(model.named_parameters())
    assert names(model) == NAMES
    assert names(nn.ModuleDict({"module": Own()})) == [f"module.{name}" for name in NAMES]


def test_wrappers_are_no_part_of_a_name_however_they_are_nested(alone: None) -> None:
    model = Own()
    model.blocks[0] = wrappers.checkpoint_wrapper(wrappers.offload_wrapper(model.blocks[0]))
    model.add_module("module", compiled(model.module))
    assert "_checkpoint_wrapped_module" in str([name for name, _ in model.named_parameters()])
    assert names(model) == NAMES
    assert names(wrappers.checkpoint_wrapper(model)) == NAMES
    for wrapped in (compiled(model), nn.DataParallel(model)):
        assert names(wrapped) == NAMES
    assert names(nn.parallel.DistributedDataParallel(compiled(model))) == NAMES
    sharded = FullyShardedDataParallel(
        Own(),
        sharding_strategy=ShardingStrategy.NO_SHARD,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    assert names(sharded) == NAMES


def test_a_wrapper_holds_the_parameters_themselves() -> None:
    model = Own()
    given = dict(model.named_parameters())
    assert all(each is given[name] for name, each in named_parameters(compiled(model)))


def test_two_parameters_that_get_one_name_are_refused_with_both_paths() -> None:
    wrapped = nn.DataParallel(nn.Linear(2, 2))
    wrapped.weight = nn.Parameter(torch.zeros(2))
    model = nn.Sequential(wrapped)
    with pytest.raises(ConfigError) as caught:
        named_parameters(model)
    assert "0.weight and 0.module.weight are both named 0.weight" in str(caught.value)
