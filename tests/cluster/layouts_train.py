"""A user's program, with several ways in which its ranks share a model: test_layouts.py starts it.

layouts_train.py SHAPE [STEP]

SHAPE: `whole` (one rank), `tensors` (4 ranks, tensor parallelism of 2 below FSDP2 of 2), `stages`
(2 ranks, a pipeline) or `interleaved` (one with two stages in each rank). At inner step STEP of its
first start, rank 1 ends itself by SIGKILL. Each rank leaves the number of optimizer steps with
which it began, and its last loss, in the current directory: `NAME-RANK.json`.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import lowcomm
from lowcomm.training.attach import Peer
from lowcomm.training.round_methods import ROUND_METHODS

WIDTH, INNER = 8, 10
"""Two ranks of tensor parallelism have 5 rows each, which two ranks of FSDP2 share unevenly."""
PACE_S = 0.02
"""Seconds of a step, so that a joiner comes before the end."""
PLAN: dict[str, ParallelStyle] = {
    "layers.*.up": ColwiseParallel(),
    "layers.*.down": RowwiseParallel(),
}
STAGES = {
    "stages": (range(2), range(2, 3)),
    "interleaved": (range(1), range(1, 2), range(2, 3), range(3, 3)),
}
"""Of each pipeline the blocks of its stages, which the ranks have in turn."""
MICROBATCHES = 2
Train = Callable[[Sequence[nn.Module], Tensor], float]
"""Trains on a batch and returns its loss; a rank that has not the last stage returns NaN."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x_BW: Tensor) -> Tensor:
        return x_BW + self.down(torch.tanh(self.up(x_BW)))


class Stage(nn.Module):
    """The blocks of a model with these numbers; the last one has the head."""

    def __init__(self, numbers: range, *, last: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): Block() for number in numbers})
        self.norm = nn.BatchNorm1d(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, WIDTH) if last else None

    def forward(self, x_BW: Tensor) -> Tensor:
        for layer in self.layers.values():
            x_BW = layer(x_BW)
        return x_BW if self.head is None or self.norm is None else self.head(self.norm(x_BW))


class Points:
    """Random vectors."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def loss_of(out_BW: Tensor, x_BW: Tensor) -> Tensor:
    return (out_BW - x_BW.flip(1)).square().mean()


def train_whole(parts: Sequence[nn.Module], x_BW: Tensor) -> float:
    loss = loss_of(parts[0](x_BW), x_BW)
    loss.backward()
    return loss.item()


def pipeline(shape: str, *, rank: int, rows: int) -> tuple[list[Stage], Train]:
    """The stages of this rank, of two, and their training step on batches of so many rows."""
    blocks = STAGES[shape]
    parts: list[Stage] = []
    stages: list[PipelineStage] = []
    for number in range(rank, len(blocks), 2):
        parts.append(Stage(blocks[number], last=number == len(blocks) - 1))
        # Without examples torch runs the stage once on any values, and BatchNorm counts them.
        shape_BW = (rows // MICROBATCHES, WIDTH)
        in_BW = torch.empty(shape_BW, requires_grad=number > 0)
        out_BW = torch.empty(shape_BW, requires_grad=True)
        cpu = torch.device("cpu")
        stages.append(PipelineStage(parts[-1], number, len(blocks), cpu, in_BW, out_BW))
    if len(stages) == 1:
        schedule = Schedule1F1B(stages[0], MICROBATCHES, loss_of)
    else:
        schedule = ScheduleInterleaved1F1B(list(stages), MICROBATCHES, loss_of)

    def train(_parts: Sequence[nn.Module], x_BW: Tensor) -> float:
        if rank == 0:
            schedule.step(x_BW)
            return math.nan
        losses: list[Tensor] = []
        schedule.step(target=x_BW, losses=losses)
        return torch.stack(losses).mean().item()

    return parts, train


def freeze(part: Stage) -> None:
    part.get_parameter("layers.0.up.bias").requires_grad = False


def build(shape: str, *, rank: int, rows: int) -> tuple[list[Stage], Train, tuple[int, int]]:
    """The parts of the model that this rank has, its training step on batches of so many rows, and
    its share of a batch."""
    if shape in STAGES:
        dist.init_process_group("gloo")
        parts, train = pipeline(shape, rank=rank, rows=rows)
        if rank == 0:
            freeze(parts[0])
        return parts, train, (0, 1)
    model = Stage(range(3), last=True)
    share = (0, 1)
    if shape == "tensors":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensors"))
        parallelize_module(model, mesh["tensors"], PLAN)
        freeze(model)
        for part in (*model.layers.values(), model):
            fully_shard(part, mesh=mesh["data"])
        share = (mesh["data"].get_local_rank(), 2)
    freeze(model)
    return [model], train_whole, share


def main(peer: Peer, shape: str, dies_at: int = 0) -> None:
    torch.manual_seed(7)
    parts, train, share = build(shape, rank=peer.rank, rows=peer.run.data.batch)
    if shape in STAGES:
        peer.reports = peer.rank == 1  # It has the last stage, and so the loss.
    # Tensors on several meshes have no step in one call.
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01, foreach=False) for each in parts]
    method = ROUND_METHODS[peer.run.method.name](parts, optimizers, peer)
    steps = [state["step"].item() for each in optimizers for state in each.state.values()]
    began = int(max(steps, default=0))
    left = Path(f"{peer.node.name}-{peer.rank}.json")
    for step, x_BW in enumerate(peer.batches(Points(), share=share), 1):
        loss = train(parts, x_BW)
        for each in optimizers:
            each.step()
            each.zero_grad()
        left.write_text(json.dumps({"began": began, "step": step, "loss": loss}))
        peer.metrics(step=step, tokens=step, loss=loss, tokens_per_s=0.0)
        if step == dies_at and peer.rank == 1 and os.environ["LOWCOMM_ATTEMPT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        method.step()
        time.sleep(PACE_S)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(lowcomm.attach(), sys.argv[1], *map(int, sys.argv[2:]))
