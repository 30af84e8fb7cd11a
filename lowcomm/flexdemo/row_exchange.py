"""Rows of one node's tensors, from the ranks that hold them to the ranks that compress them.

FSDP2 cuts each tensor's first dimension into as many pieces as there are ranks, wherever that is;
groups of `chunk` rows are compressed together. A group belongs to the rank that holds its first
row: rows that another rank holds are brought there. Must NOT know what the values are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lowcomm.replicators.replicators import Grid


@dataclass(frozen=True, slots=True)
class Rows:
    """[first, stop) of a tensor."""

    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first

    def __and__(self, other: "Rows") -> "Rows":
        first = max(self.first, other.first)
        return Rows(first, max(first, min(self.stop, other.stop)))


def held(grid: Grid, rank: int, world_size: int) -> Rows:
    """The rows of this rank's shard, as FSDP2 cuts them."""
    size = -(-grid.rows // world_size)
    return Rows(min(rank * size, grid.rows), min((rank + 1) * size, grid.rows))


def owned(grid: Grid, rank: int, world_size: int) -> Rows:
    """The rows of the groups of which this rank holds the first row."""
    ours = held(grid, rank, world_size)
    first, stop = (-(-row // grid.chunk) * grid.chunk for row in (ours.first, ours.stop))
    return Rows(min(first, grid.rows), min(stop, grid.rows))


class Borders:
    """Of one rank, among the `world_size` ranks of its node."""

    def __init__(self, grids: Sequence[Grid], *, rank: int, world_size: int) -> None:
        ranks = range(world_size)
        self._grids = tuple(grids)
        self._rank = rank
        self._held = [[held(grid, each, world_size) for grid in grids] for each in ranks]
        """By rank, then by tensor."""
        self._owned = [[owned(grid, each, world_size) for grid in grids] for each in ranks]
        self.crossed = self._held != self._owned
        """Some rank of the node has rows of another one's groups."""

    @property
    def held(self) -> Sequence[Rows]:
        """By us, of each tensor."""
        return self._held[self._rank]

    @property
    def owned(self) -> Sequence[Rows]:
        """By us, of each tensor."""
        return self._owned[self._rank]

    def exchange(self, held_RC: Sequence[Tensor], group: dist.ProcessGroup | None) -> list[Tensor]:
        """From the rows of each tensor that we hold those that we own, [rows, columns]; all ranks
        of `group` call it together."""
        if not self.crossed:
            return list(held_RC)
        outgoing = [self.outgoing(held_RC, to) for to in range(len(self._owned))]
        sizes = [self.incoming_elements(sender) for sender in range(len(self._held))]
        incoming = held_RC[0].new_empty(sum(sizes))
        dist.all_to_all_single(
            incoming,
            torch.cat(outgoing),
            output_split_sizes=sizes,
            input_split_sizes=[part.numel() for part in outgoing],
            group=group,
        )
        return self.joined(held_RC, torch.split(incoming, sizes))

    def outgoing(self, held_RC: Sequence[Tensor], to: int) -> Tensor:
        """What another rank owns of what we hold, of all tensors; to ourselves nothing."""
        parts = [held_RC[0].new_empty(0)]
        if to != self._rank:
            for number, rows_RC in enumerate(held_RC):
                parts.append(self._rows(rows_RC, number, self._owned[to][number]).reshape(-1))
        return torch.cat(parts)

    def incoming_elements(self, sender: int) -> int:
        """Of what we own, and another rank holds."""
        if sender == self._rank:
            return 0
        return sum(
            len(ours & theirs) * grid.columns
            for grid, ours, theirs in zip(self._grids, self.owned, self._held[sender], strict=True)
        )

    def joined(self, held_RC: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Tensor]:
        """What we own of each tensor: of our own rows, and of what came from each rank."""
        found: list[list[Tensor]] = [[] for _ in self._grids]
        for sender, part in enumerate(incoming):
            at = 0
            for number, (grid, ours) in enumerate(zip(self._grids, self.owned, strict=True)):
                if sender == self._rank:
                    found[number].append(self._rows(held_RC[number], number, ours))
                    continue
                size = len(ours & self._held[sender][number]) * grid.columns
                found[number].append(part[at : at + size].reshape(-1, grid.columns))
                at += size
        return [torch.cat(parts) for parts in found]

    def _rows(self, rows_RC: Tensor, number: int, wanted: Rows) -> Tensor:
        ours = self.held[number]
        both = ours & wanted
        return rows_RC[both.first - ours.first : both.stop - ours.first]
