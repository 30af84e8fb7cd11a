"""The torch optimizer inside another project's."""

import torch
from torch import nn

from lowcomm.integrations.training_node import unwrapped


class Wrapper:
    """As accelerate and Lightning have them."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer


def test_the_innermost_optimizer_is_torch_s() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    assert unwrapped(optimizer) is optimizer
    assert unwrapped(Wrapper(Wrapper(optimizer))) is optimizer
