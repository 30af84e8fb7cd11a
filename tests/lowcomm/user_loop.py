"""Somebody's own training program with FSDP2: test_trainer.py starts it under torchrun.

user_loop.py DIRECTORY    leaves what it saw there
"""

import atexit
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import lowcomm
from protocols.types.errors import ConfigError, LowcommError

ITEMS = 40
FULL = StateDictOptions(full_state_dict=True)


class Line:
    """Points of a line, each with its number."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index)]), index


def write(directory: Path, seen: dict[str, Any]) -> None:
    """The last thing that this program does."""
    seen["ended_after_s"] = time.monotonic() - seen.pop("left_at")
    (directory / f"seen-{os.environ['RANK']}.json").write_text(json.dumps(seen))


def main(directory: Path) -> None:
    seen: dict[str, Any] = {"items": [], "losses": []}
    atexit.register(write, directory, seen)
    peer = lowcomm.attach()
    try:
        peer.batches()
    except LowcommError as error:
        seen["too_early"] = str(error)
    dist.init_process_group("gloo")
    model = nn.Linear(1, 1)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    method = lowcomm.DiLoCo(model, optimizer, peer)
    try:
        method.step(tokens=0)
    except ConfigError as error:
        seen["without_tokens"] = str(error)
    for x_B1, index_B in peer.batches(Line()):
        loss = (model(x_B1) - 2 * x_B1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(x_B1)  # Somebody's evaluation, at the worst moment.
        method.step(tokens=7)
        seen["items"].append(index_B.tolist())
        seen["losses"].append(loss.item())
    try:
        method.step()
    except LowcommError as error:
        seen["too_late"] = str(error)
    last: dict[str, Any] = get_model_state_dict(model, options=FULL)
    seen["last"] = [value.item() for value in last.values()]
    seen["lr"] = optimizer.param_groups[0]["lr"]
    dist.destroy_process_group()
    seen["left_at"] = time.monotonic()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
