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
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.gpus.gpu_node import MODELS, ROUND_STEPS, WINDOW_STEPS
from benchmarks.machine import machine
from lowcomm.models import build_model
from lowcomm.reports import Commit, Event, RanksLost, Ready, read_timeline
from lowcomm.tensors import node_shards, pin, read_shards, write_shards
from peers.ipc import Slots, SlotsShape
from protocols.types import ConfigError, LowcommError
from sims.cluster import LocalCluster, LocalNode
from sims.leader_loss import write_config
from sims.terminal import run

COPIES = 7
"""Times that each copy is made with each kind of memory; the figures are medians."""
OVERLAPS = (15, 5)
CHECKPOINTS = (0, 1)
NEVER = 1_000_000
"""Rounds from one checkpoint to the next, for none."""
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
    """Throughput of a training loop with a peer attached."""

    overlap_steps: int
    checkpoint_rounds: int
    """Rounds from one checkpoint to the next; 0: there is none."""
    steps: int
    """That were measured: fewer than planned, if the other node did not wait for this one."""
    step_s: float
    """Mean."""
    throughput: float
    """Share of the bare loop's throughput."""
    seconds: dict[str, float]
    """Seconds a round that parts of `method.step()` took."""
    exchange_s: float
    """Median time from a contribution of the node to the commit of its round."""
    commits: int


def main(
    model: Annotated[str, Q(help=f"Model: {', '.join(MODELS)}.")] = "124m",
    device: Annotated[str, Q(help="cuda, or cpu to try the benchmark.")] = "cuda",
    rounds: Annotated[int, Q(help="Rounds of a run with a peer.", min=3)] = 4,
    overlap: Annotated[
        list[int] | None,
        Q(help="Steps between a contribution and its result; may be repeated. Default: 15 and 5."),
    ] = None,
    checkpoint: Annotated[
        list[int] | None,
        Q(help="Rounds between checkpoints; 0: none; may be repeated. Default: 0 and 1."),
    ] = None,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """Copies between a GPU and a node's shared memory, pinned and not; and the throughput of a
    training loop as a node of two, by Streaming DiLoCo with int8, digests and encryption, for each
    `--overlap` with each `--checkpoint`, beside the loop alone.

    \b
    Examples:
      python -m benchmarks gpu --json
      python -m benchmarks gpu --model small --device cpu --rounds 3
    """
    if model not in MODELS:
        raise ConfigError(f"--model {model}: known are {', '.join(MODELS)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch sees no GPU: try the benchmark with --device cpu --model small")
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    progress.print("copies ...")
    copies = copy_both_ways(model, device)
    settings = list(product(overlap or OVERLAPS, checkpoint or CHECKPOINTS))
    progress.print(
        f"training: the loop alone, {len(settings)} runs with a peer, the loop alone ..."
    )
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        try:
            bare_s, runs = asyncio.run(
                _train(Path(directory), model, device, rounds, settings, progress.print)
            )
        except TimeoutError:
            raise LowcommError(f"a part of the benchmark took longer than {PART_S:g} s") from None
    told = {"model": model, "device": device, "rounds": rounds, "machine": _machine(device)}
    if as_json:
        found = {"copies": asdict(copies), "bare_step_s": bare_s, "runs": [*map(asdict, runs)]}
        print(json.dumps({**told, **found}))
        return
    console = Console(highlight=False)
    gib = copies.mib / 1024
    for what, fast_s, slow_s in (
        ("contribute", copies.contribute_s, copies.contribute_unpinned_s),
        ("take", copies.take_s, copies.take_unpinned_s),
    ):
        console.print(f"{what}: {gib / fast_s:.1f} GiB/s; without pinning {gib / slow_s:.1f} GiB/s")
    console.print(f"the loop alone: {1 / statistics.median(bare_s):.2f} steps/s")
    for each in runs:
        parts = ", ".join(f"{name} {took_s:.3f} s" for name, took_s in each.seconds.items())
        console.print(
            f"overlap_steps = {each.overlap_steps}, a checkpoint each {each.checkpoint_rounds} "
            f"rounds (0: none): {each.throughput:.1%}; a round: {parts}; exchange "
            f"{each.exchange_s:.3f} s"
        )


def copy_both_ways(model: str, device: str) -> Copies:
    """Copy a model to the slots of a contribution and from those of a result, by turns with pinned
    and with ordinary memory."""
    where = torch.device(device)
    made = build_model(MODELS[model], seed=0).to(where)
    shards = node_shards(made, rank=0).shards
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


async def _train(
    place: Path,
    model: str,
    device: str,
    rounds: int,
    settings: Sequence[tuple[int, int]],
    tell: Callable[[str], None],
) -> tuple[list[float], list[Trained]]:
    """(seconds of a step of the loop alone, before and after the runs; the runs)."""
    bare_s = [await _bare(place / "before.json", model, device)]
    tell(f"the loop alone: {bare_s[0]:.5f} s a step")
    measured: list[Trained] = []
    for number, (overlap, checkpoint) in enumerate(settings):
        there = place / str(number)
        method = (
            f'name = "streaming_diloco"\ninner_steps = {ROUND_STEPS}\nfragments = 4\n'
            f'overlap_steps = {overlap}\nmixing = 0.5\ncontribution_codec = "int8"'
        )
        config = write_config(there, peers=2, rounds=rounds, method=method)
        found, events = await _attached(there, config, model, device, checkpoint, bare_s[0])
        moments: list[float] = found["moments"]
        if len(moments) < 2:
            raise LowcommError("the run ended without the node on the GPU: try more rounds")
        steps = WINDOW_STEPS * (len(moments) - 1)
        step_s = (moments[-1] - moments[0]) / steps
        trained = Trained(
            overlap_steps=overlap,
            checkpoint_rounds=checkpoint,
            steps=steps,
            step_s=step_s,
            throughput=bare_s[0] / step_s,
            seconds={
                name: round(took_s * ROUND_STEPS / steps, 4)
                for name, took_s in found["seconds"].items()
            },
            exchange_s=_exchange_s(events),
            commits=sum(type(event) is Commit for event in events),
        )
        tell(f"with a peer: {json.dumps(asdict(trained))}")
        measured.append(trained)
    bare_s.append(await _bare(place / "after.json", model, device))
    mean_s = statistics.mean(bare_s)
    return bare_s, [replace(each, throughput=mean_s / each.step_s) for each in measured]


async def _attached(
    place: Path, config: Path, model: str, device: str, checkpoint: int, idle_s: float
) -> tuple[dict[str, Any], Sequence[Event]]:
    """One run with a peer: (the report of its training process, the node's events)."""
    told = place / "peer.json"
    programs = {
        "alpha": ["peer", model, device, str(told), "0"],
        "beta": ["idle", model, "cpu", str(place / "idle.json"), repr(idle_s)],
    }
    rounds = f"node.checkpoint_every_rounds={checkpoint or NEVER}"
    async with LocalCluster(place / "run") as cluster, asyncio.timeout(PART_S):

        def start(name: str, token: str) -> LocalNode:
            command = [sys.executable, "-m", "benchmarks.gpus.gpu_node", *programs[name]]
            sets = [rounds]
            return cluster.start_peer(name, config, join=token, command=command, overrides=sets)

        for node in await cluster.start_all(list(programs), start):
            if await node.child.wait():
                raise LowcommError(f"{node.name} ended: {node.last_words()}")
        events = read_timeline(cluster.nodes[0].directory).events
        if any(isinstance(event, RanksLost) for event in events):
            raise LowcommError(f"the rank on the GPU was lost: {cluster.nodes[0].last_words()}")
        return _read(told), events


def _exchange_s(events: Sequence[Event]) -> float:
    began = {(each.fragment, each.round): each.t for each in events if isinstance(each, Ready)}
    return statistics.median(
        each.t - began[each.fragment, each.round]
        for each in events
        if isinstance(each, Commit) and (each.fragment, each.round) in began
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
