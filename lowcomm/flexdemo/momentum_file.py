"""A node's momentum on disk; a node that restarts uses it only for exactly the next step.

    <directory>/rank-1-of-2.safetensors    "0", "1", ...: of each tensor the rows of that rank

Must NOT give a rank another rank's momentum, or one that does not fit exactly.
"""

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from lowcomm.loop_state.rank_checkpoint import HEADER, RankFile, read_tensors, write_tensors

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


def load_momentum(file: RankFile, shapes: Sequence[tuple[int, int]]) -> Kept | None:
    """The momentum that a rank like this one saved for tensors of these shapes; None if there is no
    file, or if it is damaged or does not fit."""
    expected = {"schema": SCHEMA, "rank": file.rank, "world_size": file.world_size}
    read = read_tensors(file.path, expected)
    if read is None:
        return None
    tensors, header = read
    step = header.pop("step", None)
    wanted = {str(number): shape for number, shape in enumerate(shapes)}
    fit = {entry: tuple(each.shape) for entry, each in tensors.items()} == wanted and all(
        each.dtype == torch.float32 for each in tensors.values()
    )
    if not (fit and header == expected and isinstance(step, int)):
        return None
    return step, [tensors[entry] for entry in wanted]
