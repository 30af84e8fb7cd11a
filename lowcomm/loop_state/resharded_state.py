"""The optimizer state of a node that had another number of ranks, cut anew for one of this many.

A rank's file has the shapes of its shards. If these are parts of the whole along one dimension, in
the order of the ranks (FSDP2), or the whole on every rank, the parts of any number of ranks can be
cut from them. All others are left alone: the optimizer then begins anew. Must NOT write a file, nor
guess a layout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from lowcomm.checkpoints.rank_states import complete_for
from lowcomm.loop_state.rank_checkpoint import (
    Optimizers,
    Parameters,
    RankFile,
    RankStateError,
    give_state,
    identity,
    like,
    read_tensors,
    split_entry,
)
from lowcomm.tensors.placement import box_of
from protocols.types import ConfigError

Shape = tuple[int, ...]
Shapes = Mapping[str, tuple[Shape, Shape]]
"""Of each parameter the whole shape, and that of one rank's part."""


@dataclass(frozen=True, slots=True)
class OtherRank:
    """The file of one rank of the other number."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]
    sharded: frozenset[str]
    shapes: Shapes


def load_resharded(file: RankFile, parameters: Parameters, optimizer: Optimizers) -> bool:
    """Load into `optimizer` this rank's part of the state that another number of ranks saved in the
    directory of `file`. Returns whether that succeeded; if not, the optimizer is unchanged."""
    world_size = other_world_size(file)
    if not world_size:
        return False
    try:
        ranks = [_read(file, rank, world_size, optimizer) for rank in range(world_size)]
        _check_whole(ranks, parameters)
        tensors = {
            entry: _part(ranks, entry, parameters[split_entry(entry)[1]])
            for entry in ranks[0].tensors
        }
    except (RankStateError, ConfigError, ValueError, KeyError, TypeError):
        return False
    give_state({**tensors, **ranks[0].values}, parameters, optimizer)
    return True


def other_world_size(file: RankFile) -> int:
    """The number of ranks of which all files are in the directory, the newest ones; 0 if there is
    none."""
    found: list[tuple[float, int]] = []
    for number in complete_for(file.directory):
        found.append((RankFile(file.directory, 0, number).path.stat().st_mtime, number))
    return max(found, default=(0.0, 0))[1]


def _read(file: RankFile, rank: int, world_size: int, optimizer: Optimizers) -> OtherRank:
    """Read the file of another rank. Raises RankStateError if it is damaged, or of another
    optimizer."""
    other = RankFile(file.directory, rank, world_size)
    expected = identity(other, {}, optimizer)
    del expected["parameters"]
    read = read_tensors(other.path, expected)
    if read is None:
        raise RankStateError(f"{other.path.name} cannot be used")
    tensors, header = read
    shapes = {
        name: (tuple(whole), tuple(local))
        for name, (whole, local) in cast(
            "dict[str, tuple[list[int], list[int]]]", header["parameters"]
        ).items()
    }
    return OtherRank(tensors, header["values"], frozenset(header["sharded"]), shapes)


def _check_whole(ranks: Sequence[OtherRank], parameters: Parameters) -> None:
    """Raise RankStateError unless all ranks have the same entries, of these parameters."""
    mine = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    for rank in ranks:
        if {name: whole for name, (whole, _) in rank.shapes.items()} != mine:
            raise RankStateError("the model has other parameters")
        same = rank.tensors.keys() == ranks[0].tensors.keys()
        if not same or (rank.values, rank.sharded) != (ranks[0].values, ranks[0].sharded):
            raise RankStateError("the ranks have different entries")


@torch.no_grad()
def _part(ranks: Sequence[OtherRank], entry: str, parameter: Tensor) -> Tensor:
    """The part of one entry that belongs to this rank. Raises RankStateError if it has no place in
    the whole."""
    name = split_entry(entry)[1]
    whole = tuple(parameter.shape)
    first = ranks[0].tensors[entry]
    if entry not in ranks[0].sharded and tuple(first.shape) != whole:
        # A number of the whole parameter, such as AdamW's step.
        if first.numel() != 1 or not all(torch.equal(x.tensors[entry], first) for x in ranks):
            raise RankStateError(f"{entry} is neither a part of its parameter nor one number")
        return first
    box = zip(*box_of(name, parameter), strict=True)
    place = tuple(slice(first, first + size) for first, size in box)
    cut = _joined(ranks, entry, name, whole)[(..., *place)].contiguous()
    return like(parameter, cut) if isinstance(parameter, DTensor) else cut


def _joined(ranks: Sequence[OtherRank], entry: str, name: str, whole: Shape) -> Tensor:
    """The whole tensor of one entry. Raises RankStateError unless the ranks have it whole, or in
    parts along one dimension."""
    parts = [rank.tensors[entry] for rank in ranks]
    if any(tuple(x.shape) != rank.shapes[name][1] for x, rank in zip(parts, ranks, strict=True)):
        raise RankStateError(f"{entry} has not the shape of its parameter")
    return joined(parts, whole, entry)


def joined(parts: Sequence[Tensor], whole: Shape, entry: str) -> Tensor:
    """The tensor of this shape of the parts that the ranks have, in their order; `entry` is its
    name in texts. Raises RankStateError unless they have it whole, or in parts along one
    dimension."""
    if all(tuple(part.shape) == whole for part in parts):
        return parts[0]
    if any(part.dim() != len(whole) for part in parts):
        raise RankStateError(f"{entry} has another number of dimensions")
    (axis, *others) = [
        axis for axis, size in enumerate(whole) if any(part.shape[axis] != size for part in parts)
    ]
    if others or sum(part.shape[axis] for part in parts) != whole[axis]:
        raise RankStateError(f"{entry} is not in parts along one dimension")
    return torch.cat(list(parts), dim=axis)
