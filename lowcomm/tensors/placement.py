"""The part of a tensor that one rank holds: plain, or distributed over meshes of the node's ranks.

FSDP2, HSDP and tensor parallelism cut dimensions, one mesh dimension after the other; a part may be
uneven or empty. Must NOT copy a value, nor know what a tensor is for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement as TorchPlacement
from torch.distributed.tensor.placement_types import (
    _StridedShard,  # pyright: ignore[reportPrivateUsage] - FSDP2 makes it of tensor-parallel ones.
)

from protocols.types import ConfigError


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a rank's part in the whole tensor."""

    offsets: tuple[int, ...]
    """The first index of the part in each dimension; where it holds nothing, any."""
    sizes: tuple[int, ...]
    """The size of the part in each dimension; a 0 means that this rank holds nothing of the
    tensor."""
    writes: bool
    """Whether this rank writes the part. Exactly one of the ranks that hold the same part does."""


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of the tensor itself, not a copy, outside of any autograd graph."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def box_of(name: str, tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first index and the size, in each dimension, of the part that this rank holds. A plain
    tensor is whole. Raises ConfigError for a part that is a summand (Partial), lies in several
    pieces, or is another one than its placement says."""
    whole = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return (0,) * len(whole), whole
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigError(
            f"tensor {name} is on a mesh without this rank: give each rank a model of its own "
            "tensors only"
        )
    try:
        offsets, sizes = _box(whole, tuple(mesh.shape), tuple(coordinate), placements)
    except ConfigError as error:
        raise ConfigError(f"tensor {name} is placed as {placements}: {error}") from error
    local = tuple(tensor._local_tensor.shape)
    if local != sizes:
        raise ConfigError(
            f"tensor {name} {list(whole)} is placed as {placements}, which gives this rank "
            f"{list(sizes)}, but it holds {list(local)}: make its first dimensions divisible by "
            "the mesh"
        )
    return offsets, sizes


@lru_cache(maxsize=4096)  # A model has few shapes; 50,000 boxes would take seconds.
def _box(
    whole: tuple[int, ...],
    mesh: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: tuple[TorchPlacement, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    held: list[list[range]] = [[range(size)] for size in whole]
    for at, count, placement in zip(coordinate, mesh, placements, strict=True):
        if isinstance(placement, Shard | _StridedShard):
            factor = int(getattr(placement, "split_factor", 1))
            dimension = cast("int", placement.dim)
            held[dimension] = _share(held[dimension], factor, count, at)
        elif not isinstance(placement, Replicate):
            raise ConfigError(
                "each rank has a summand of it, and nodes exchange values; redistribute it to "
                "Shard or Replicate"
            )
    if any(len(ranges) > 1 for ranges in held):
        raise ConfigError(
            "this rank's part lies in several pieces, which have no one place; shard it with "
            "Shard, or with fully_shard and parallelize_module"
        )
    sizes = tuple(sum(map(len, ranges)) for ranges in held)
    return tuple(ranges[0].start if ranges else 0 for ranges in held), sizes


def _share(held: Sequence[range], factor: int, count: int, at: int) -> list[range]:
    """The share number `at`, of `count`, of each of `factor` pieces of these indices, as torch cuts
    them."""
    found: list[range] = []
    for number in range(factor):
        for each in _piece(_piece(held, factor, number), count, at):
            if found and found[-1].stop == each.start:
                found[-1] = range(found[-1].start, each.stop)
            else:
                found.append(each)
    return found


def _piece(held: Sequence[range], count: int, at: int) -> list[range]:
    """The piece number `at` of these indices in `count` pieces, of which the last may be smaller or
    empty."""
    size = -(-sum(map(len, held)) // count)
    first, last = at * size, (at + 1) * size
    found: list[range] = []
    start = 0
    for each in held:
        cut = each[max(first - start, 0) : max(last - start, 0)]
        if cut:
            found.append(cut)
        start += len(each)
    return found
