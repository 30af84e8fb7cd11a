"""A training loop with objects of its own, which tests/cluster/test_kept_objects.py kills.

kept_loop.py OUT STEP    at inner step STEP of its first start it ends itself by SIGKILL
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import lowcomm

ITEMS = 64
RATE, DECAY = 0.05, 0.97
NEVER = -1
"""STEP of a loop that does not end itself."""


class Points:
    """Points of a plane, each with its sum."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.tensor([index / ITEMS, (index * 7 % ITEMS) / ITEMS])
        return x, x.sum(dim=0, keepdim=True)


def main(out: Path, dies_at: int) -> None:
    torch.manual_seed(3)
    peer = lowcomm.attach()
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.25), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)
    average = AveragedModel(model, multi_avg_fn=cast(Any, get_ema_multi_avg_fn)(0.9))
    peer.keep("scheduler", scheduler)
    peer.keep("average", average)
    method = lowcomm.DiLoCo(model, optimizer, peer)
    peer.keep("random", lowcomm.RandomState())  # What is kept may come after the method, too.
    first = method.inner_step
    for x_B2, y_B1 in peer.batches(Points()):
        if method.inner_step == dies_at and first == 0:
            time.sleep(1.0)  # The state of the last round is written meanwhile.
            os.kill(os.getpid(), signal.SIGKILL)
        nn.functional.mse_loss(model(x_B2), y_B1).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        average.update_parameters(model)
        method.step()
    found: dict[str, Any] = {
        "first": first,
        "rate": optimizer.param_groups[0]["lr"],
        "steps": scheduler.last_epoch,
        "model": [x.tolist() for x in model.parameters()],
        "average": [x.tolist() for x in average.parameters()],
        "averaged": int(average.n_averaged),
    }
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
