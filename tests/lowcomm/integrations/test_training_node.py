"""The torch optimizer inside another project's; schedulers that follow steps."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from lowcomm.integrations.training_node import follows_steps, unwrapped


class Wrapper:
    """As accelerate and Lightning have them."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer


def test_the_innermost_optimizer_is_torch_s() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    assert unwrapped(optimizer) is optimizer
    assert unwrapped(Wrapper(Wrapper(optimizer))) is optimizer


def test_a_scheduler_that_follows_a_loss_does_not_follow_steps() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    assert follows_steps(ExponentialLR(optimizer, 0.9))
    assert not follows_steps(ReduceLROnPlateau(optimizer))
    assert not follows_steps(Wrapper(optimizer))  # GreedyLR of transformers is no torch scheduler.
