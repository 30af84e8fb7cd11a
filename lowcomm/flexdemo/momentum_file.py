"""A node's momentum on disk: for a node that goes on from just the step after which it was kept.

    <directory>/rank-1-of-2.safetensors    "0", "1", ...: of each tensor the rows of that rank

Must NOT give a rank what another one kept, or what does not fit exactly.
"""

import json
from collections.abc import Sequence
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lowcomm.training.rank_checkpoint import HEADER, RankFile, write_tensors

SCHEMA = 1

Kept = tuple[int, Sequence[Tensor]]
"""A step, and the momentum after it: of each tensor fp32 [rows, columns]."""


def save_momentum(file: RankFile, kept: Kept) -> None:
    """Write this rank's file: whole and synced, or not at all. Raises OSError."""
    step, momentum_RC = kept
    header = {"schema": SCHEMA, "rank": file.rank, "world_size": file.world_size, "step": step}
    file.directory.mkdir(parents=True, exist_ok=True)
    tensors = {str(number): each.contiguous() for number, each in enumerate(momentum_RC)}
    write_tensors(file.path, tensors, {HEADER: json.dumps(header)})


def load_momentum(file: RankFile, shapes: Sequence[tuple[int, int]]) -> Kept | None:
    """What a rank like this one has saved, of tensors of these shapes; None when there is nothing,
    or it is damaged, or of others."""
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
