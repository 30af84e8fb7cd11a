"""A node's momentum on disk; a node that restarts uses it only for exactly the next step.

    <directory>/rank-1-of-2.safetensors    "0", "1", ...: of each tensor the rows of that rank

Must NOT give a rank another rank's momentum, or one that does not fit exactly.
"""

import json
from collections.abc import Sequence
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lowcomm.loop_state.rank_checkpoint import HEADER, RankFile, write_tensors

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
    try:
        with cast(Any, safe_open(file.path, framework="pt")) as opened:
            header: dict[str, Any] = json.loads(opened.metadata()[HEADER])
            step = int(header.pop("step"))
            found: list[Tensor] = [opened.get_tensor(str(at)) for at in range(len(shapes))]
            count = len(opened.keys())
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError):
        return None
    fit = all(
        tuple(each.shape) == shape and each.dtype == torch.float32
        for each, shape in zip(found, shapes, strict=True)
    )
    return (step, found) if fit and header == expected and count == len(shapes) else None
