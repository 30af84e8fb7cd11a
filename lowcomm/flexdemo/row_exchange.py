"""Exchange of tensor rows in one node, from the ranks that hold them to the ranks that encode them.

FSDP2 divides each tensor's first dimension into as many pieces as there are ranks, but groups of
`chunk` rows are encoded together. A group belongs to the rank that holds its first row: other ranks
send their rows of the group to this rank. Must NOT know what the values are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lowcomm.replicators.replicators import Grid


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows [first, stop) of a tensor."""

    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first

    def __and__(self, other: "Rows") -> "Rows":
        first = max(self.first, other.first)
        return Rows(first, max(first, min(self.stop, other.stop)))


def held(grid: Grid, rank: int, world_size: int) -> Rows:
    """The rows of this rank's shard, as FSDP2 divides them."""
    size = -(-grid.rows // world_size)
    return Rows(min(rank * size, grid.rows), min((rank + 1) * size, grid.rows))


def owned(grid: Grid, rank: int, world_size: int) -> Rows:
    """The rows of all groups of which this rank holds the first row."""
    ours = held(grid, rank, world_size)
    first, stop = (-(-row // grid.chunk) * grid.chunk for row in (ours.first, ours.stop))
    return Rows(min(first, grid.rows), min(stop, grid.rows))


class RowExchange:
    """The rows that one rank holds and owns, among the `world_size` ranks of its node."""

    def __init__(self, grids: Sequence[Grid], *, rank: int, world_size: int) -> None:
        ranks = range(world_size)
        self._grids = tuple(grids)
        self._rank = rank
        self._held = [[held(grid, each, world_size) for grid in grids] for each in ranks]
        """Held rows by rank, then by tensor."""
        self._owned = [[owned(grid, each, world_size) for grid in grids] for each in ranks]
        self.crossed = self._held != self._owned
        """Whether any rank of the node holds rows of a group that another rank owns."""

    @property
    def held(self) -> Sequence[Rows]:
        """The rows of each tensor that this rank holds."""
        return self._held[self._rank]

    @property
    def owned(self) -> Sequence[Rows]:
        """The rows of each tensor that this rank owns."""
        return self._owned[self._rank]

    def exchange(self, held_RC: Sequence[Tensor], group: dist.ProcessGroup | None) -> list[Tensor]:
        """Exchange the rows that each rank holds for those that it owns: fp32 [rows, columns] of
        each tensor. All ranks of `group` call this together."""
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
        """The elements of all tensors that this rank holds and rank `to` owns, flat; empty for this
        rank itself."""
        parts = [held_RC[0].new_empty(0)]
        if to != self._rank:
            for number, rows_RC in enumerate(held_RC):
                parts.append(self._rows(rows_RC, number, self._owned[to][number]).reshape(-1))
        return torch.cat(parts)

    def incoming_elements(self, sender: int) -> int:
        """Number of elements that this rank owns and rank `sender` holds; 0 for this rank
        itself."""
        if sender == self._rank:
            return 0
        return sum(
            len(ours & theirs) * grid.columns
            for grid, ours, theirs in zip(self._grids, self.owned, self._held[sender], strict=True)
        )

    def joined(self, held_RC: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Tensor]:
        """The rows of each tensor that this rank owns: its own ones, and those from each other
        rank."""
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
