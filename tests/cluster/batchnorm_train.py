"""A user's program whose model has BatchNorm: test_buffers.py starts it.

batchnorm_train.py SHIFT    this node's samples are shifted by this much

Each rank leaves in the current directory `NAME-RANK-began.safetensors`, the buffers that it began
with, and `NAME-RANK.safetensors`, its last ones, and what the final model makes of some inputs in
evaluation mode.
"""

import sys
import time
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import lowcomm
from lowcomm.program.process_group import join_node, leave_node, rank_device
from lowcomm.tensors.fsdp import shard_model
from lowcomm.training.round_methods import ROUND_METHODS

WIDTH = 8
PACE_S = 0.005
"""Seconds of a step, so that a joiner comes before the end."""


class Points:
    """Random vectors, of another mean in each node."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=generator) * (1 + self.shift) + self.shift


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    model = nn.Sequential(first, second)
    model.register_buffer("cache", torch.zeros(3), persistent=False)
    return model


@torch.no_grad()
def evaluated(model: nn.Module) -> Tensor:
    model.eval()
    return model(torch.linspace(-2, 2, 4 * WIDTH).reshape(4, WIDTH))


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: each for name, each in model.state_dict().items() if ".1." in name}


def leave(path: str, tensors: dict[str, Tensor]) -> None:
    found = {name: each.clone() for name, each in tensors.items() if not isinstance(each, DTensor)}
    cast(Any, safetensors.torch).save_file(found, path)


def main(shift: str) -> None:
    peer = lowcomm.attach()
    model = make_model()
    device = rank_device("cpu", local_rank=0)
    shard_model(model, model, mesh=join_node(device, world_size=peer.world_size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method = ROUND_METHODS[peer.run.method.name](model, optimizer, peer)
    path = f"{peer.node.name}-{peer.rank}"
    leave(f"{path}-began.safetensors", buffers_of(model))
    for x_BW in peer.batches(Points(float(shift))):
        (model(x_BW) - x_BW).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        time.sleep(PACE_S)
    leave(f"{path}.safetensors", buffers_of(model) | {"outputs": evaluated(model)})
    leave_node()


if __name__ == "__main__":
    main(*sys.argv[1:])
