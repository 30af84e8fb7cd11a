"""The tensors of one node: what its ranks hold together, in an order that no sharding changes.

A rank may hold a part of each tensor (FSDP2, tensor parallelism), the tensors of some stages of a
pipeline, or both; several ranks may hold the same part. The ranks tell each other what they hold,
so each of them knows all tensors of the node, and which part it writes. Must NOT copy a value, nor
decide which tensors nodes exchange.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from lowcomm.tensors.placement import Placement, box_of
from protocols.types import ConfigError


class HeldPart(NamedTuple):
    """The part of one tensor that one rank holds."""

    name: str
    shape: tuple[int, ...]
    """That of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    kind: str
    """The kind of the tensor as text, such as its type; equal on all ranks that hold it."""
    plain: bool
    """It is no DTensor, so no rank knows of others."""


def held_part(name: str, tensor: Tensor, kind: str = "parameter") -> HeldPart:
    """What this rank holds of the tensor. Raises ConfigError as `box_of` does."""
    offsets, sizes = box_of(name, tensor)
    plain = not isinstance(tensor, DTensor)
    return HeldPart(name, tuple(tensor.shape), offsets, sizes, kind, plain)


@dataclass(slots=True)
class NodeTensor:
    """One tensor of the node."""

    first: HeldPart
    """The part of the first rank that has it."""
    writers: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = field(
        default_factory=dict[tuple[tuple[int, ...], tuple[int, ...]], int]
    )
    """The rank that writes each part."""
    plain_on: int = 0
    """Number of ranks on which it is a plain tensor."""

    def add_part(self, rank: int, held: HeldPart) -> None:
        """A rank holds a part of it. Raises ConfigError if that is of another tensor."""
        first = self.first
        if (held.shape, held.kind) != (first.shape, first.kind):
            raise ConfigError(
                f"tensor {held.name} is {held.kind} {list(held.shape)} on rank {rank}, and "
                f"{first.kind} {list(first.shape)} on another one: stages of a pipeline keep the "
                "names of the whole model"
            )
        self.plain_on += held.plain
        if 0 not in held.sizes:
            self.writers.setdefault((held.offsets, held.sizes), rank)

    def check(self) -> None:
        """Raise ConfigError unless the parts that ranks write make up the tensor."""
        written = sum(prod(sizes) for _, sizes in self.writers)
        if written != prod(self.first.shape):
            raise ConfigError(
                f"tensor {self.first.name} {list(self.first.shape)}: the parts of the node's ranks "
                f"have {written:,} elements, so they overlap or leave gaps: shard it alike on all "
                "ranks that hold it"
            )


@dataclass(frozen=True, slots=True)
class NodeTensors:
    """All tensors of the node, as one rank of it sees them."""

    rank: int
    tensors: Mapping[str, NodeTensor]
    """By name, in the node's order."""

    def placement(self, held: HeldPart) -> Placement:
        """The place of this rank's own part."""
        writer = self.tensors[held.name].writers.get((held.offsets, held.sizes))
        return Placement(held.offsets, held.sizes, writes=writer == self.rank)


def node_tensors(
    mine: Sequence[HeldPart], *, rank: int, world_size: int | None = None
) -> NodeTensors:
    """All tensors that this node's ranks hold. All ranks call it together, in a process group of
    all of them; without one, or if there is one rank only, the others hold what this one does.

    `world_size`: the number of ranks; None: that of the process group. Raises ConfigError if parts
    of equal names do not fit together.
    """
    everyone = _gathered(mine, rank=rank, world_size=world_size)
    found: dict[str, NodeTensor] = {}
    for number, theirs in enumerate(everyone):
        for held in theirs:
            found.setdefault(held.name, NodeTensor(held)).add_part(number, held)
    for each in found.values():
        each.check()
    names = merged([[held.name for held in theirs] for theirs in everyone])
    return NodeTensors(rank, {name: found[name] for name in names})


def _gathered(
    mine: Sequence[HeldPart], *, rank: int, world_size: int | None
) -> Sequence[Sequence[HeldPart]]:
    if not dist.is_initialized() or world_size == 1:
        return [mine] * (world_size or rank + 1)
    ranks = dist.get_world_size()
    if world_size not in (None, ranks):
        raise ConfigError(
            f"torch.distributed has {ranks} ranks, and the node {world_size}: call "
            "init_process_group() once in each rank, with torchrun's variables"
        )
    everyone: list[list[HeldPart]] = [[] for _ in range(ranks)]
    dist.all_gather_object(everyone, list(mine))
    return everyone


def merged(orders: Iterable[Sequence[str]]) -> list[str]:
    """The names of all these lists in one order: that of a module with all parts, if the lists are
    those of its parts.

    Siblings come in the order of the lists that have both; numbers ascend; of others the one comes
    first that was seen first.
    """
    distinct = list(dict.fromkeys(map(tuple, orders)))
    if len(distinct) == 1:
        return list(distinct[0])
    return _merged([[(name.split("."), name) for name in names] for names in distinct], 0)


Paths = Sequence[tuple[Sequence[str], str]]
"""Names with their components."""


def _merged(lists: Sequence[Paths], depth: int) -> list[str]:
    """The names below one module, all of which share their first `depth` components."""
    if len(lists) == 1:
        return [name for _, name in lists[0]]
    leaves: dict[str, str] = {}
    below: dict[str, list[list[tuple[Sequence[str], str]]]] = {}
    chains: list[list[str]] = []
    for paths in lists:
        chain: dict[str, list[tuple[Sequence[str], str]]] = {}
        for path, name in paths:
            chain.setdefault(path[depth], []).append((path, name))
            if len(path) == depth + 1:
                leaves[path[depth]] = name
        chains.append(list(chain))
        for key, inside in chain.items():
            below.setdefault(key, []).append(inside)
    found: list[str] = []
    for key in _siblings(chains):
        found += [leaves[key]] if key in leaves else _merged(below[key], depth + 1)
    return found


def _siblings(chains: Sequence[Sequence[str]]) -> list[str]:
    """All members of these lists, each after those that any list has before it."""
    seen = {key: number for number, key in enumerate(dict.fromkeys(x for c in chains for x in c))}
    numbers = sorted((key for key in seen if key.isdecimal()), key=int)
    after: dict[str, set[str]] = {key: set() for key in seen}
    waits = dict.fromkeys(seen, 0)
    for chain in (*chains, numbers):
        for before, key in pairwise(chain):
            if key not in after[before]:
                after[before].add(key)
                waits[key] += 1
    free = [(seen[key], key) for key, count in waits.items() if not count]
    heapq.heapify(free)
    found: list[str] = []
    while free:
        _, key = heapq.heappop(free)
        found.append(key)
        for each in after[key]:
            waits[each] -= 1
            if not waits[each]:
                heapq.heappush(free, (seen[each], each))
    known = set(found)
    return found + [key for key in seen if key not in known]  # Lists that contradict each other.
