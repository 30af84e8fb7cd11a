"""The ranks of one node as real gloo processes under FSDP2: test_flexdemo.py starts this script.

flexdemo_ranks.py WORLD DIRECTORY    forks WORLD ranks, which compress the same gradients whatever
                                     WORLD is, and leaves payload-STEP.bin in DIRECTORY
"""

import mmap
import os
import signal
import socket
import sys
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from lowcomm.flexdemo.method import gradient_rows, group_of
from lowcomm.flexdemo.momentum import MomentumExchange
from lowcomm.methods import FlexDeMoMethod
from lowcomm.methods.base import Parameter
from lowcomm.program.process_group import join_node, leave_node, rank_device
from lowcomm.tensors.fsdp import node_shards, shard_model

DEADLINE_S = 60  # Of each rank, whatever happens to the others.
STEPS = 3
METHODS = (
    FlexDeMoMethod(),
    FlexDeMoMethod(chunk=8, topk=5, values="sign"),
    FlexDeMoMethod(replicator="random"),
    FlexDeMoMethod(replicator="striding", one_in=7),
    FlexDeMoMethod(replicator="full"),
)


class Odd(nn.Module):
    """No number of ranks divides its rows, and tiles cross the borders of all shards."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(70, 150)
        self.few = nn.Embedding(3, 20)
        self.norm = nn.LayerNorm(97)


def main(rank: int, shared: list[mmap.mmap]) -> None:
    signal.alarm(DEADLINE_S)
    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    mesh = join_node(rank_device("cpu", local_rank=0), world_size=world)
    model = Odd()
    shard_model(model, [model.up], mesh=mesh)
    shards = node_shards(model, rank=rank).shards
    parameters = [Parameter(shard.place.name, shard.place.shape) for shard in shards]
    written = (memoryview(buffer) for buffer in shared)
    for method in METHODS:
        compression = MomentumExchange(
            method.make_exchange(parameters, seed=11),
            momentum=method.momentum,
            rank=rank,
            world_size=world,
            group=group_of(shards),
        )
        for step in range(1, STEPS + 1):
            drawn = torch.Generator().manual_seed(step)
            for shard in shards:
                gradient = torch.randn(shard.place.shape, generator=drawn)
                if isinstance(shard.parameter, DTensor):
                    at = shard.parameter.device_mesh, shard.parameter.placements
                    gradient = distribute_tensor(gradient, *at)
                shard.parameter.grad = gradient
            rates = [1e-3 * (number + 1) for number in range(len(shards))]
            rows = [gradient_rows(shard) for shard in shards]
            compression.write(rows, rates, step, next(written))
            compression.counted(step)
    leave_node()


if __name__ == "__main__":
    world, directory = int(sys.argv[1]), Path(sys.argv[2])
    sizes = [Parameter(name, tuple(x.shape)) for name, x in Odd().named_parameters()]
    buffers = [
        mmap.mmap(-1, method.make_exchange(sizes, seed=11).payload_bytes)
        for method in METHODS
        for _ in range(STEPS)
    ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(world))
    mp.start_processes(  # pyright: ignore[reportPrivateImportUsage] - it is documented.
        main, (buffers,), nprocs=world, start_method="fork"
    )
    (directory / "payloads.bin").write_bytes(b"".join(bytes(buffer) for buffer in buffers))
