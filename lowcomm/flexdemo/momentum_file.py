"""A node's momentum on disk; a node that restarts uses it only for exactly the next step.

    <directory>/rank-1-of-2.safetensors    "0", "1", ...: of each tensor the rows of that rank

The ranks' rows follow each other, so those of any number of ranks can be cut from them. Must NOT
give a rank momentum that does not fit exactly.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lowcomm.flexdemo.row_exchange import Rows
from lowcomm.loop_state.rank_checkpoint import HEADER, RankFile, read_tensors, write_tensors
from lowcomm.loop_state.resharded_state import other_world_size

SCHEMA = 1

Kept = tuple[int, Sequence[Tensor]]
"""A step, and the momentum after it: fp32 [rows, columns] of each tensor."""


def save_momentum(file: RankFile, kept: Kept) -> None:
    """Write this rank's file: complete and synced, or not at all. Raises OSError."""
    step, momentum_RC = kept
    header = {"schema": SCHEMA, "rank": file.rank, "world_size": file.world_size, "step": step}
    file.directory.mkdir(parents=True, exist_ok=True)
    tensors = {str(number): each.contiguous() for number, each in enumerate(momentum_RC)}
    write_tensors(file.path, tensors, {HEADER: json.dumps(header)})


def load_momentum(
    file: RankFile, owned: Sequence[Rows], shapes: Sequence[tuple[int, int]]
) -> Kept | None:
    """The momentum of these rows of tensors of these whole shapes (rows, columns), which the same
    number of ranks saved, or else another one; None if there is none, or if a file that these rows
    are read from is damaged or does not fit."""
    if file.is_of_all:
        own = [(len(rows), columns) for rows, (_, columns) in zip(owned, shapes, strict=True)]
        return _load(file, own)
    count = other_world_size(file)
    each = [_load(replace(file, rank=rank, world_size=count)) for rank in range(count)]
    ranks = [kept for kept in each if kept is not None]
    if not ranks or len(ranks) < count or len({step for step, _ in ranks}) > 1:
        return None
    if {len(rows_RC) for _, rows_RC in ranks} != {len(shapes)}:
        return None
    found: list[Tensor] = []
    for number, (rows, shape) in enumerate(zip(owned, shapes, strict=True)):
        parts = [rows_RC[number] for _, rows_RC in ranks]
        columns = {part.shape[1] for part in parts}
        if columns != {shape[1]} or sum(part.shape[0] for part in parts) != shape[0]:
            return None
        found.append(torch.cat(parts)[rows.first : rows.stop].clone())
    return ranks[0][0], found


def _load(file: RankFile, shapes: Sequence[tuple[int, int]] | None = None) -> Kept | None:
    """The momentum that a rank like this one saved for tensors of these shapes; None: of any
    shapes."""
    expected = {"schema": SCHEMA, "rank": file.rank, "world_size": file.world_size}
    read = read_tensors(file.path, expected)
    if read is None:
        return None
    tensors, header = read
    step = header.pop("step", None)
    wanted = [str(number) for number in range(len(tensors))]
    fit = tensors.keys() == set(wanted) and all(
        each.dtype == torch.float32 and each.dim() == 2 for each in tensors.values()
    )
    if fit and shapes is not None:
        fit = [tuple(tensors[entry].shape) for entry in wanted] == list(shapes)
    if not (fit and header == expected and isinstance(step, int)):
        return None
    return step, [tensors[entry] for entry in wanted]
