"""Ranks whose parameters are known: an inner step sets them instead of training.

`exactness_ranks:main` is what the zygote of `exactness_daemon.py` calls; the test uses the rest to
know what every node must have. Rank 0 leaves the parameters after each result in its node's
directory, gathered by torch itself. Must NOT import torch before there is a rank.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowcomm.methods import RoundMethod

if TYPE_CHECKING:
    from torch import nn

SHAPES = ((7, 5), (5,), (3, 7), (11,), (1, 1))
"""No number of ranks divides them; some ranks hold nothing of the smaller ones."""
ELEMENTS = sum(int(np.prod(shape)) for shape in SHAPES)
HELD = "held.bin"


def values(step: int) -> NDArray[np.float32]:
    """All parameters after inner step `step` of the run, fp32 [ELEMENTS]; -1 is the beginning.

    Between -0.5 and 0.5, nothing that fp32 has exactly, and all different.
    """
    numbers = (np.arange(ELEMENTS) * 7919 + (step + 2) * 104729) % 9973
    return (numbers / 9973 - 0.5).astype(np.float32)


def main() -> int:
    """One rank of a node, until the run is finished."""
    import torch

    import lowcomm
    from lowcomm.program.process_group import join_node, leave_node
    from lowcomm.tensors.fsdp import reshard, shard_model

    peer = lowcomm.attach()
    torch.set_num_threads(1)
    mesh = join_node(torch.device("cpu"), world_size=peer.world_size)
    model = odd_model()
    shard_model(model, list(model.children())[:2], mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    set_parameters(model, -1)
    method = lowcomm.DiLoCo(model, optimizer, peer)
    assert isinstance(peer.run.method, RoundMethod)
    with (Path(peer.node.directory) / HELD).open("ab", buffering=0) as held:
        while not method.finished:
            set_parameters(model, method.inner_step)
            peer.draw()  # The samples that a batch would have.
            method.step()
            if method.inner_step % peer.run.method.inner_steps == 0:
                reshard(model)
                gathered = gather(model)
                if peer.rank == 0:
                    held.write(gathered)
    leave_node()
    peer.close()
    return 0


def odd_model() -> "nn.Module":
    """Parameters of SHAPES in their order, in three modules."""
    from torch import empty, nn

    def block(*shapes: tuple[int, ...]) -> nn.ParameterList:
        return nn.ParameterList([nn.Parameter(empty(shape)) for shape in shapes])

    model = nn.Module()
    model.first, model.second, model.third = (
        block(*SHAPES[:2]),
        block(*SHAPES[2:4]),
        block(SHAPES[4]),
    )
    return model


def set_parameters(model: "nn.Module", step: int) -> None:
    """To `values(step)`. Which shard of them is this rank's is torch's decision."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole = torch.from_numpy(values(step))
    offset = 0
    with torch.no_grad():
        for parameter in model.parameters():
            count = parameter.numel()
            value: Any = whole[offset : offset + count].view(parameter.shape)
            if isinstance(parameter, DTensor):
                value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
            parameter.copy_(value)
            offset += count


def gather(model: "nn.Module") -> bytes:
    """All parameters, fp32 [ELEMENTS]; every rank has to call it."""
    from torch.distributed.tensor import DTensor

    parts: list[bytes] = []
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        parts.append(whole.detach().numpy().tobytes())
    return b"".join(parts)
