"""A user's program with data of its own, which tests/cluster/test_own_data.py starts.

own_data_train.py OUT KIND [ACCUMULATE [WORKERS [STEP]]]

It writes the items that it trains on to a file, OUT with its rank. At inner step STEP of its first
start it ends itself by SIGKILL.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import lowcomm

STREAM_STEP_S = 0.03
"""Seconds that a step of a stream's loop takes at least: other nodes join meanwhile."""
ITEMS = 100_000
"""More than a test trains on."""


class Points:
    """Points of a line, each with its number."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([index / ITEMS]), index


class Stream(IterableDataset[tuple[Tensor, int]]):
    """The same points, without a length and without access by number. In a loading process it
    yields a share of them, as datasets of torch do."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        worker = get_worker_info()
        share = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return map(Points().__getitem__, range(share[0], ITEMS, share[1]))


def joined(items: list[tuple[Tensor, int]]) -> tuple[Tensor, list[int]]:
    """A collate function of the program's own."""
    return torch.stack([x for x, _ in items]), [index for _, index in items]


def batches(peer: Any, kind: str, accumulate: int, workers: int) -> Any:
    """The program's batches."""
    if kind == "items":
        return peer.batches(Points(), collate_fn=joined, num_workers=workers, accumulate=accumulate)
    if kind == "undeclared":
        return peer.batches(Points(), collate_fn=joined)
    if kind == "stream":
        return peer.batches(Stream(), collate_fn=joined, num_workers=workers)
    if kind == "sampler":
        sampler = lowcomm.Sampler(peer, Points())
        points = cast(Any, Points())
        return DataLoader(points, batch_sampler=sampler, num_workers=workers, collate_fn=joined)
    assert kind == "loader"
    return DataLoader(cast(Any, Points()), batch_size=4, shuffle=True, collate_fn=joined)


def main(out: Path, kind: str, accumulate: int, workers: int, dies_at: int) -> None:
    torch.manual_seed(3)
    peer = lowcomm.attach()
    model = nn.Sequential(nn.Linear(1, 8), nn.Linear(8, 1))
    if peer.world_size > 1:
        dist.init_process_group("gloo")
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made_by = {"streaming_diloco": lowcomm.StreamingDiLoCo, "flexdemo": lowcomm.FlexDeMo}
    method: Any = made_by.get(peer.run.method.name, lowcomm.DiLoCo)(model, optimizer, peer)
    per_step = isinstance(method, lowcomm.FlexDeMo)
    items: list[int] = []
    with out.open("a", encoding="ascii") as file:
        for number, (x_B1, index_B) in enumerate(batches(peer, kind, accumulate, workers), 1):
            (model(x_B1) - 2 * x_B1).square().mean().div(accumulate).backward()
            items += index_B
            if method.finished:
                break
            if number == dies_at and os.environ["LOWCOMM_ATTEMPT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "stream":
                time.sleep(STREAM_STEP_S)
            if number % accumulate == 0:
                if not per_step:
                    optimizer.step()
                    optimizer.zero_grad()
                file.write(json.dumps([os.getpid(), number, items]) + "\n")
                file.flush()
                items = []
                method.step()
    if peer.world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[3:]]
    numbers = (*given, *(1, 0, 0)[len(given) :])
    main(Path(sys.argv[1] + os.environ.get("RANK", "0")), sys.argv[2], *numbers)
