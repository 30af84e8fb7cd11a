"""The nodes that `lowcomm demo` and `lowcomm sim` start, and the faults of the demo.

The demo's first victim kills itself in the middle of a reduction: that window is milliseconds wide
and cannot be hit from outside. Some rounds later a new peer joins. Once the new peer is counted,
the peer that founded the run and leads it is killed; the others elect another leader and go on.
"""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lowcomm.config import RunConfig, load_config
from lowcomm.reports import Commit, Event
from protocols.types import ConfigError
from sims.cluster.launch import Watch, fresh_run_dir, supervise
from sims.cluster.names import NAMES

NEWCOMER = "delta"
DEMO = Path(__file__).with_name("demo.toml")
CONFIG = "run.toml"
KILL_ROUNDS = (6, 9)
KILL_CHUNKS = (1, 3)
"""Range of the chunk at which the victim kills itself. It sends 4 in a round: to each of two peers
a slice of its contribution, and its part of the result."""
ROUNDS_UNTIL_JOIN = 2
ROUNDS_UNTIL_LEADER = 2
"""Rounds between the first that counts the new peer and the kill of the leader."""


async def run_demo(
    seed: int, directory: Path | None, overrides: Sequence[str], *, console: Console
) -> int:
    """Run three nodes, one of them with two ranks; then a kill, a join, and the kill of the leader.
    Returns the exit code."""
    overrides = [f"run.seed={seed}", *overrides]
    run = _run_config(DEMO, overrides)
    run_dir = fresh_run_dir(directory, run.name)
    config = _place_config(DEMO, run_dir)
    draw = random.Random(seed)  # noqa: S311 (a demonstration, no secrets)
    kill_round = draw.randint(*KILL_ROUNDS)
    fault = f"kill@round={kill_round},chunk={draw.randint(*KILL_CHUNKS)}"
    committed, settled = asyncio.Event(), asyncio.Event()
    counted: list[int] = []
    """Rounds that count the new peer."""

    async def start(watch: Watch) -> None:
        cluster = watch.cluster

        def look(event: Event) -> None:
            if isinstance(event, Commit) and event.round >= kill_round + ROUNDS_UNTIL_JOIN:
                committed.set()
            if isinstance(event, Commit) and event.name == NEWCOMER and event.counted:
                counted.append(event.round)
            if len(counted) > ROUNDS_UNTIL_LEADER:
                settled.set()

        watch.on_event = look
        first = cluster.start_peer("alpha", config, overrides=[*overrides, "node.ranks=2"])
        token = await cluster.token_of(first)
        if not token:
            return
        mine = [text for text in overrides if text.startswith("node.")]  # [run] is in the log.
        cluster.start_peer("beta", None, join=token, overrides=mine)
        cluster.start_peer("gamma", None, join=token, overrides=mine, fault=fault)
        await committed.wait()
        cluster.start_peer(NEWCOMER, None, join=token, overrides=mine)
        await settled.wait()
        if first.running:
            os.kill(first.child.pid, signal.SIGKILL)

    return await supervise(run_dir, run, start, console=console)


async def run_sim(
    config: Path,
    ranks: Sequence[int],
    directory: Path | None,
    overrides: Sequence[str],
    *,
    command: Sequence[str],
    console: Console,
) -> int:
    """Run one node for each count of ranks. `command`: the ranks' program; empty: the built-in
    one. Returns the exit code."""
    run = _run_config(config, overrides)
    run_dir = fresh_run_dir(directory, run.name)
    placed = _place_config(config, run_dir)

    async def start(watch: Watch) -> None:
        cluster, token = watch.cluster, ""
        for name, count in zip(NAMES, ranks, strict=False):
            mine = [*overrides, f"node.ranks={count}"]
            node = cluster.start_peer(name, placed, join=token, overrides=mine, command=command)
            token = token or await cluster.token_of(node)
            if not token:
                return

    return await supervise(run_dir, run, start, console=console)


def _run_config(config: Path, overrides: Sequence[str]) -> RunConfig:
    run = load_config(config, overrides).run
    if run is None:
        raise ConfigError(f"{config} has no [run] table: add one that says what to train")
    return run


def _place_config(config: Path, run_dir: Path) -> Path:
    """Copy the configuration file, unchanged, into the run directory."""
    placed = run_dir / CONFIG
    shutil.copyfile(config, placed)
    return placed
