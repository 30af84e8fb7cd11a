"""What per-step methods ask of a program's optimizer."""

import pytest
import torch
from torch import nn

from lowcomm.tensors.fsdp import node_shards
from lowcomm.training.step_methods import check_adamw, check_buffers, group_numbers
from protocols.types.errors import ConfigError


def test_an_optimizer_that_steps_otherwise_is_refused() -> None:
    parameters = [nn.Parameter(torch.zeros(3))]
    check_adamw(torch.optim.AdamW(parameters), "allreduce")
    with pytest.raises(ConfigError, match=r'is SGD: with run.method.name = "allreduce"'):
        check_adamw(torch.optim.SGD(parameters, lr=0.1), "allreduce")
    with pytest.raises(ConfigError, match="amsgrad"):
        check_adamw(torch.optim.AdamW(parameters, amsgrad=True), "allreduce")


def test_an_optimizer_of_other_parameters_than_the_model_is_refused_and_says_which() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shards, parameters = node_shards(model, rank=0).shards, list(model.parameters())
    adam, groups = torch.optim.AdamW, [{"params": parameters[:1]}, {"params": parameters[1:]}]
    assert sorted(group_numbers(shards, adam(groups))) == [0, 1, 1, 1]
    with pytest.raises(ConfigError, match=r"it lacks 1\.bias$"):
        group_numbers(shards, adam(parameters[:-1]))
    with pytest.raises(ConfigError, match=r"and others$"):
        group_numbers(shards, adam([nn.Parameter(torch.zeros(3))]))
    with pytest.raises(ConfigError, match="has 1 that are not in the model"):
        group_numbers(shards, adam([*parameters, nn.Parameter(torch.zeros(3))]))
    frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    assert group_numbers(shards, adam([*parameters, frozen]), others=[frozen]) == [0] * len(shards)


def test_a_model_with_floating_buffers_is_refused_unless_nodes_keep_their_own() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    with pytest.raises(ConfigError, match=r"buffer 1\.running_mean would differ.*\"local\""):
        check_buffers(model, "allreduce", kept=False)
    check_buffers(model, "allreduce", kept=True)
    check_buffers(model[0], "allreduce", kept=False)
