"""The part of a tensor that one rank holds: plain, or sharded by FSDP2.

Must NOT copy a value, nor know what a tensor is for.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from protocols.types import ConfigError


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a rank's part in the whole tensor."""

    offsets: tuple[int, ...]
    """The first index of the part in each dimension."""
    sizes: tuple[int, ...]
    """The size of the part in each dimension; a 0 means that this rank holds nothing of the
    tensor."""
    writes: bool
    """Whether this rank writes the part. Exactly one of the ranks that hold the same part does."""


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of the tensor itself, not a copy, outside of any autograd graph."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def placement_of(name: str, tensor: Tensor, rank: int) -> Placement:
    """The part that this rank holds. A plain tensor is whole on every rank, and rank 0 writes it;
    of a DTensor the first rank writes, along the mesh dimensions that replicate it. Raises
    ConfigError for a placement that is neither Shard nor Replicate."""
    whole = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Placement((0,) * len(whole), whole, writes=rank == 0)
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(type(placement) not in (Shard, Replicate) for placement in placements):
        raise ConfigError(
            f"parameter {name} is placed as {placements}: only Shard and Replicate are supported"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigError(f"rank {rank} is not in the mesh of parameter {name}")
    sizes, offsets = compute_local_shape_and_global_offset(whole, mesh, placements)
    local = local_of(tensor)
    assert tuple(local.shape) == tuple(sizes), f"{name}: {local.shape} is not {sizes}"
    writes = all(
        at == 0
        for at, placement in zip(coordinate, placements, strict=True)
        if isinstance(placement, Replicate)
    )
    return Placement(tuple(offsets), tuple(sizes), writes=writes)
