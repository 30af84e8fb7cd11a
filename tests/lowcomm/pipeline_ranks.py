"""The ranks of a node with a pipeline as gloo processes: test_round_methods.py starts this script.

pipeline_ranks.py SHAPE DIRECTORY RANK_STATE    forks the ranks of tests/cluster/layouts_train.py

RANK_STATE is the directory of an earlier state, or "". Each rank leaves what it saw in DIRECTORY,
and its own state in DIRECTORY/state. Must NOT judge these: the test does.
"""

import json
import os
import socket
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from lowcomm.config.schema import DataConfig, NodeConfig, RunConfig, run_to_json
from lowcomm.methods import LocalSGDMethod
from lowcomm.numerics import F32
from lowcomm.training.attach import Peer
from peers.ipc.messages import Attached, Configured, Result, TensorPlace
from peers.ipc.shared_memory import SlotsShape
from protocols.types.sample_ranges import SampleRange, Samples
from tests.cluster import layouts_train

RANKS, INNER, ROUNDS, BATCH = 2, 3, 3, 4
RUN = RunConfig(method=LocalSGDMethod(inner_steps=INNER), data=DataConfig(batch=BATCH))


class LonelyDaemon:
    """The daemon of a node alone, as its ranks see it: the result of each round is what they have
    contributed together. Implements what Peer needs of a RankClient."""

    def __init__(self, directory: Path, rank_state: str) -> None:
        node = json.dumps(asdict(NodeConfig(name="node")))
        self.configured = Configured(run=run_to_json(RUN), node=node, corpus="")
        self.needs_daemon = True
        self.lasting_memory: list[memoryview] = []
        self.losses: list[float] = []
        self.names: list[str] = []
        self._directory, self._rank_state = directory, rank_state
        self._written: dict[int, F32] = {}
        self._results = defaultdict[int, deque[tuple[Result, F32]]](deque)
        self._taken: dict[int, F32] = {}
        self._versions = defaultdict[int, int](int)

    def attach(self, tensors: Sequence[TensorPlace], *, elements: int, **_: Any) -> Attached:
        sizes = defaultdict[int, int](int)
        for each in tensors:
            sizes[each.fragment] += each.elements
        written = torch.tensor(elements)
        dist.all_reduce(written)
        assert written.item() == sum(sizes.values())
        self.names = [each.name for each in tensors if each.fragment == 0]
        self._written = {at: np.empty(size, np.float32) for at, size in sizes.items()}
        shape = SlotsShape(RANKS, tuple(4 * size for size in sizes.values()))
        return Attached(shape=shape, initial=True, slot=0, rank_state=self._rank_state)

    def contribution(self, fragment: int) -> memoryview:
        self._written[fragment].fill(np.nan)
        return self._written[fragment].view(np.uint8).data

    def contribute(self, fragment: int, *, steps: int, tokens: int, samples: Samples = ()) -> None:
        every: list[Any] = [None] * RANKS
        dist.all_gather_object(every, (self._written[fragment], steps, tokens, samples))
        assert len({tuple(counts) for _, *counts in every}) == 1
        values = np.stack([written for written, *_ in every])
        assert (np.isfinite(values).sum(axis=0) == 1).all(), "each element has one writer"
        version = self._versions[fragment]
        self._versions[fragment] += 1
        result = Result(
            fragment=fragment,
            place=0,
            kind="full",
            version=version,
            inner_step=version * INNER,
            boundary_steps=INNER,
            counted=version > 0,
            finish=version == ROUNDS,
            snapshot=str(self._directory / "state") if (version, fragment) == (2, 0) else "",
            samples=(SampleRange(0, BATCH * INNER * (version + 2)),) if fragment == 0 else (),
        )
        self._results[fragment].append((result, np.nansum(values, axis=0)))

    def wait_result(self, fragment: int) -> Result:
        result, self._taken[fragment] = self._results[fragment].popleft()
        return result

    def result(self, result: Result) -> memoryview:
        return self._taken[result.fragment].view(np.uint8).data.toreadonly()

    def check_untorn(self, result: Result) -> None: ...

    def count_step(self, step: int) -> None: ...

    def snapshotted(self, directory: str) -> None: ...

    def ask_boundary(self, steps: int, *, due: bool, left: Sequence[int]) -> int | None:
        return left[0] if due else None

    def demand_samples(self, *, step_samples: int, ahead: int) -> Samples:
        return (SampleRange(0, step_samples * INNER * 2 + ahead),)

    def metrics(self, *, loss: float, **_: Any) -> None:
        self.losses.append(loss)


def rank_main(rank: int, shape: str, directory: Path, rank_state: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(directory)
    daemon = LonelyDaemon(directory, rank_state)
    layouts_train.main(Peer(cast(Any, daemon), rank=rank, world_size=RANKS), shape)
    found = {"names": daemon.names, "losses": daemon.losses}
    Path(f"saw-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(RANKS))
    mp.start_processes(  # pyright: ignore[reportPrivateImportUsage] - it is documented.
        rank_main,
        (sys.argv[1], Path(sys.argv[2]), sys.argv[3]),
        nprocs=RANKS,
        start_method="fork",
    )
