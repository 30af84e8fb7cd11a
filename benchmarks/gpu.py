"""A GPU and the daemon: copies through shared memory, and a training loop with a peer attached.

`python -m benchmarks gpu`; real daemons and real training. Must NOT compare two runs of the
command: the machine may be busy.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.gpus.gpu_node import MODELS, ROUND_STEPS, WINDOW_STEPS
from benchmarks.machine import machine
from lowcomm.models import build_model
from lowcomm.reports import Commit, read_timeline
from lowcomm.training import pin, read_shards, shard_views, write_shards
from peers.ipc import Slots, SlotsShape
from protocols.types import ConfigError, LowcommError
from sims.cluster import LocalCluster, LocalNode
from sims.leader_loss import write_config
from sims.terminal import run

COPIES = 7
"""Times that each copy is made with each kind of memory; the figures are medians."""
PART_S = 300.0
"""Seconds after which a part of the benchmark is given up."""
Q = typer.Option


@dataclass(frozen=True, slots=True)
class Copies:
    """Seconds of one copy of the whole model between the GPU and shared memory."""

    mib: float
    """MiB of fp32: 2**18 parameters each."""
    pin_s: float
    """Seconds to pin the memory of a contribution and of a result, once."""
    is_all_pinned: bool
    contribute_s: float
    contribute_unpinned_s: float
    take_s: float
    take_unpinned_s: float


@dataclass(frozen=True, slots=True)
class Trained:
    """Throughput of a training loop without and with a peer attached."""

    bare_step_s: float
    """Median of the windows before and after the run with a peer."""
    peer_step_s: float
    """Mean from the end of the first round to the last window."""
    throughput: float
    """Share of the bare loop's throughput: bare_step_s / peer_step_s."""
    waited: float
    """Share of the time that `method.step()` took."""
    commits: int


def main(
    model: Annotated[str, Q(help=f"Model: {', '.join(MODELS)}.")] = "124m",
    device: Annotated[str, Q(help="cuda, or cpu to try the benchmark.")] = "cuda",
    rounds: Annotated[int, Q(help="Rounds of the run with a peer.", min=2)] = 4,
    overlap: Annotated[int, Q(help="Steps between a contribution and its result.", min=0)] = 15,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """Copies between a GPU and a node's shared memory, pinned and not; and the throughput of a
    training loop as a node of two, by Streaming DiLoCo with int8, digests, checkpoints and
    encryption.

    \b
    Examples:
      python -m benchmarks gpu --json
      python -m benchmarks gpu --model small --device cpu --rounds 2
    """
    if model not in MODELS:
        raise ConfigError(f"--model {model}: known are {', '.join(MODELS)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch sees no GPU: try the benchmark with --device cpu --model small")
    progress = Console(stderr=True, highlight=False)
    progress.print("copies ...")
    copies = copy_both_ways(model, device)
    progress.print(
        f"training: the loop alone, {rounds} rounds with a peer, the loop alone again ..."
    )
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        try:
            trained = asyncio.run(_train(Path(directory), model, device, rounds, overlap))
        except TimeoutError:
            raise LowcommError(f"a part of the benchmark took longer than {PART_S:g} s") from None
    asked = {"model": model, "device": device, "rounds": rounds, "overlap_steps": overlap}
    told = {**asked, "machine": _machine(device)}
    if as_json:
        print(json.dumps({**told, "copies": asdict(copies), "training": asdict(trained)}))
        return
    console = Console(highlight=False)
    gib = copies.mib / 1024
    for what, fast_s, slow_s in (
        ("contribute", copies.contribute_s, copies.contribute_unpinned_s),
        ("take", copies.take_s, copies.take_unpinned_s),
    ):
        console.print(f"{what}: {gib / fast_s:.1f} GiB/s; without pinning {gib / slow_s:.1f} GiB/s")
    console.print(
        f"training: {trained.throughput:.1%} of the bare loop's {1 / trained.bare_step_s:.2f} "
        f"steps/s; method.step() took {trained.waited:.1%} of the time"
    )


def copy_both_ways(model: str, device: str) -> Copies:
    """Copy a model to the slots of a contribution and from those of a result, by turns with pinned
    and with ordinary memory."""
    where = torch.device(device)
    made = build_model(MODELS[model], seed=0).to(where)
    shards = shard_views(made, rank=0)
    size = 4 * sum(parameter.numel() for parameter in made.parameters())
    with _slots(size) as fast, _slots(size) as slow:
        began = time.perf_counter()
        is_all_pinned = pin([fast.contribution(0), fast.result(0, 0)], where)
        pin_s = time.perf_counter() - began

        def contribute(slots: Slots) -> Callable[[], None]:
            return lambda: write_shards(shards, slots.contribution(0))

        def take(slots: Slots) -> Callable[[], None]:
            return lambda: read_shards(shards, slots.result(0, 0), "full")

        fast_s, slow_s = _by_turns(contribute(fast), contribute(slow))
        take_s, take_slow_s = _by_turns(take(fast), take(slow))
    return Copies(size / 2**20, pin_s, is_all_pinned, fast_s, slow_s, take_s, take_slow_s)


@contextmanager
def _slots(size: int) -> Generator[Slots]:
    """A rank's view of a daemon's memory, with one fragment."""
    shape = SlotsShape(1, (size,))
    daemon = Slots.create(shape)
    rank = Slots.attach(os.dup(daemon.fd), shape)
    daemon.result(0, 0)[:] = bytes(size)
    try:
        yield rank
    finally:
        rank.close()
        daemon.close()


def _by_turns(*works: Callable[[], None]) -> list[float]:
    """Median seconds of each work."""
    seconds: list[list[float]] = [[] for _ in works]
    for turn in range(COPIES + 1):
        for work, took in zip(works, seconds, strict=True):
            began = time.perf_counter()
            work()
            if turn:  # The first one touches the memory.
                took.append(time.perf_counter() - began)
    return [statistics.median(took) for took in seconds]


async def _train(place: Path, model: str, device: str, rounds: int, overlap: int) -> Trained:
    before_s = await _bare(place / "before.json", model, device)
    told = place / "peer.json"
    method = (
        f'name = "streaming_diloco"\ninner_steps = {ROUND_STEPS}\nfragments = 4\n'
        f'overlap_steps = {overlap}\nmixing = 0.5\ncontribution_codec = "int8"'
    )
    config = write_config(place, peers=2, rounds=rounds, method=method)
    async with LocalCluster(place / "run") as cluster, asyncio.timeout(PART_S):
        programs = {
            "alpha": ["peer", model, device, str(told), "0"],
            "beta": ["idle", model, "cpu", str(place / "idle.json"), repr(before_s)],
        }

        def start(name: str, token: str) -> LocalNode:
            command = [sys.executable, "-m", "benchmarks.gpus.gpu_node", *programs[name]]
            return cluster.start_peer(name, config, join=token, command=command)

        for node in await cluster.start_all(list(programs), start):
            if await node.child.wait():
                raise LowcommError(f"{node.name} ended: {node.last_words()}")
        commits = [x for x in read_timeline(cluster.nodes[0].directory).events if type(x) is Commit]
    after_s = await _bare(place / "after.json", model, device)
    found = _read(told)
    moments, waits = found["moments"], found["waits"]
    first = ROUND_STEPS // WINDOW_STEPS
    steps = WINDOW_STEPS * (len(moments) - 1 - first)
    took_s = moments[-1] - moments[first]
    bare_s = (before_s + after_s) / 2
    return Trained(
        bare_step_s=bare_s,
        peer_step_s=took_s / steps,
        throughput=bare_s * steps / took_s,
        waited=sum(waits[ROUND_STEPS : ROUND_STEPS + steps]) / took_s,
        commits=len(commits),
    )


async def _bare(told: Path, model: str, device: str) -> float:
    """Seconds of a step of the loop alone: the median of its windows."""
    arguments = ["bare", model, device, str(told), "0"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.gpus.gpu_node", *arguments)
    )
    if await asyncio.wait_for(process.wait(), PART_S):
        raise LowcommError("the bare loop failed: see its output above")
    return statistics.median(b - a for a, b in pairwise(_read(told)["moments"])) / WINDOW_STEPS


def _read(told: Path) -> dict[str, Any]:
    return json.loads(told.read_text(encoding="utf-8"))


def _machine(device: str) -> dict[str, object]:
    gpu = torch.cuda.get_device_name() if device == "cuda" else "none"
    return {**machine(), "gpu": gpu, "cuda": torch.version.cuda}


if __name__ == "__main__":
    run(main)
