"""Small exchanges by torch's gloo: the time from a payload to the mean.

    python -m benchmarks.exchanging.gloo_steps RANK PEERS ELEMENTS STEPS DIRECTORY

Must NOT import anything of lowcomm.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=2)


def main(rank: int, peers: int, elements: int, steps: int, directory: Path) -> None:
    """Measure the exchanges, and write the seconds of each to a file in the directory."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/store",
        rank=rank,
        world_size=peers,
        timeout=TIMEOUT,
    )
    values = torch.arange(elements, dtype=torch.float32)
    taken = {
        "all_reduce": timed(lambda: all_reduced(values, peers), steps),
        "all_gather": timed(lambda: gathered(values, peers), steps),
    }
    (directory / f"gloo-{rank}.json").write_text(json.dumps(taken), encoding="ascii")
    dist.destroy_process_group()


def timed(exchange: Callable[[], torch.Tensor], steps: int) -> list[float]:
    """Seconds of each exchange."""
    seconds: list[float] = []
    for _ in range(steps):
        began = time.perf_counter()
        exchange()
        seconds.append(time.perf_counter() - began)
    return seconds


def all_reduced(values: torch.Tensor, peers: int) -> torch.Tensor:
    mean = values.clone()
    dist.all_reduce(mean)
    return mean.div_(peers)


def gathered(values: torch.Tensor, peers: int) -> torch.Tensor:
    """The mean of all peers' values, gathered and added up locally, as in a stepwise run."""
    parts = [torch.empty_like(values) for _ in range(peers)]
    dist.all_gather(parts, values)
    mean = parts[0]
    for part in parts[1:]:
        mean.add_(part)
    return mean.div_(peers)


if __name__ == "__main__":
    rank, peers, elements, steps = (int(text) for text in sys.argv[1:5])
    main(rank, peers, elements, steps, Path(sys.argv[5]))
