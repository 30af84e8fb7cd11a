"""What per-step methods ask of a program's optimizer."""

import pytest
import torch
from torch import nn

from lowcomm.training.step_methods import check_adamw
from protocols.types.errors import ConfigError


def test_an_optimizer_that_steps_otherwise_is_refused() -> None:
    parameters = [nn.Parameter(torch.zeros(3))]
    check_adamw(torch.optim.AdamW(parameters), "allreduce")
    with pytest.raises(ConfigError, match=r'is SGD: with run.method.name = "allreduce"'):
        check_adamw(torch.optim.SGD(parameters, lr=0.1), "allreduce")
    with pytest.raises(ConfigError, match="amsgrad"):
        check_adamw(torch.optim.AdamW(parameters, amsgrad=True), "allreduce")
