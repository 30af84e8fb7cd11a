"""A user's program that trains adapters beside a frozen base: test_adapters.py starts it.

adapters_train.py [SEED [DTYPE]]    base of this seed; with a DTYPE the adapters have it, and blocks
                                    are under activation checkpointing
"""

import sys

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

import lowcomm

WIDTH, RANK = 256, 4


class Adapted(nn.Module):
    """A frozen bf16 matrix, and an update of low rank that is trained."""

    def __init__(self, generator: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        base = torch.randn(WIDTH, WIDTH, generator=generator) / 16
        self.base = nn.Parameter(base.bfloat16(), requires_grad=False)
        down = torch.randn(RANK, WIDTH, generator=generator) / 16
        self.down = nn.Parameter(down.to(dtype))
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK, dtype=dtype))

    def forward(self, x_BW: Tensor) -> Tensor:
        kind = self.up.dtype
        low_BR = x_BW.to(kind) @ self.down.t()
        return (x_BW.bfloat16() @ self.base).float() + (low_BR @ self.up.t()).float()


class Points:
    """Random vectors."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def main(seed: str = "1", dtype: str = "") -> None:
    peer = lowcomm.attach()
    generator = torch.Generator().manual_seed(int(seed))
    kind: torch.dtype = getattr(torch, dtype or "float32")
    blocks = [Adapted(generator, kind) for _ in range(2)]
    model = nn.Sequential(
        *(wrappers.checkpoint_wrapper(each) if dtype else each for each in blocks)
    )
    every_step = peer.run.method.name == "allreduce"
    if every_step:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        method = lowcomm.AllReduce(model, optimizer, peer)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        method = lowcomm.DiLoCo(model, optimizer, peer)
    for x_BW in peer.batches(Points()):
        (model(x_BW) - x_BW).square().mean().backward()
        if not every_step:
            optimizer.step()
            optimizer.zero_grad()
        method.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
