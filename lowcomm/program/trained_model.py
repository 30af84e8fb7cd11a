"""Makes the built-in model on one rank, and computes its gradients, as `[run]` and `[node]` say.

The model is described first, then sharded, and only then gets storage and values, one parameter
after the other: no rank ever holds all of it. Must NOT know of other nodes.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from lowcomm.config.schema import NodeConfig, RunConfig
from lowcomm.models.initial_values import SeededValues
from lowcomm.models.llama import Llama, next_token_loss
from lowcomm.program.saved_values import SavedValues
from lowcomm.tensors.fsdp import shard_model
from lowcomm.tensors.names import named_parameters
from lowcomm.tensors.placement import box_of, local_of

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""By `node.compute`."""


def make_model(
    run: RunConfig, node: NodeConfig, *, mesh: DeviceMesh | None, device: torch.device
) -> Llama:
    """Make this rank's part of the model, with its initial values. `mesh` may be None if there is
    one rank and it computes in fp32. All ranks of a node call this together. Raises ConfigError if
    the checkpoint `run.model.init_from` is of another model."""
    model = Llama(run.model, device="meta")
    model.train_by(recompute=node.activation_checkpointing, compiled=node.compile)
    shard_model(model, model.model.layers, mesh=mesh, compute=TYPES[node.compute])
    model.to_storage(device)
    parameters = dict(named_parameters(model))
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    with torch.no_grad(), _values(run, shapes) as values:
        for name, parameter in parameters.items():
            box = zip(*box_of(name, parameter), strict=True)
            window = [slice(first, first + size) for first, size in box]
            local_of(parameter).copy_(values.part(name, window))
    return model


def add_gradients(
    model: nn.Module, tokens_BT1: Tensor, *, at_once: int, device: torch.device
) -> Tensor:
    """Add the gradient of the mean loss over these samples to the parameters' gradients; return the
    loss, 0-d, without a graph.

    `tokens_BT1`: int64 [B, T + 1]. `at_once`: how many samples are computed together, which bounds
    the memory for activations; 0: all. The gradients of the parts are summed in the parameters'
    type, and between ranks after each part, so that a rank keeps its shards of them only.
    """
    rows = len(tokens_BT1)
    total = torch.zeros((), device=device)
    parts = cast("tuple[Tensor, ...]", tokens_BT1.split(at_once or rows))  # Has no annotations.
    for part_BT1 in parts:
        loss = next_token_loss(model, part_BT1.to(device)) * (len(part_BT1) / rows)
        loss.backward()
        total += loss.detach()
    return total


def _values(
    run: RunConfig, shapes: Mapping[str, Sequence[int]]
) -> AbstractContextManager[SavedValues | SeededValues]:
    if run.model.init_from:
        return SavedValues(run.model, shapes)
    return nullcontext(SeededValues(run.model, shapes, seed=run.seed))
