"""Kills all nodes of a run at once, again and again, and resumes each one by its own command.

`python -m sims.total_loss` does it with real daemons and the built-in training program on this
machine. No port is configured, so the nodes find each other only if they keep theirs. Must NOT
judge the times: its callers do.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.reports import Commit, Event
from protocols.types import LowcommError
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.leader_loss import TINY_MODEL, Watcher, have_one_state, play_once, within
from sims.terminal import run

ROUNDS_BETWEEN = 12
"""Rounds of all nodes before each loss, so that there is a newer checkpoint."""
WINDOW = 64
"""Tokens of a sample, as `write_config` sets it."""
APART_S = 0.5
"""The nodes are resumed within so many seconds."""


@dataclass(frozen=True, slots=True)
class TotalLoss:
    """One loss of all nodes."""

    reached: int
    """The last committed round before it."""
    back_to: int
    """The last round that stayed."""
    together_s: float
    """Seconds from the start of the last node until a round counted all nodes."""


@dataclass(frozen=True, slots=True)
class TotalLossOutcome:
    """The outcome of a run."""

    losses: tuple[TotalLoss, ...]
    digests_equal: bool
    """All nodes that applied a round in the same branch of the log had the same state."""
    samples: int
    """Committed samples at the end, by the log."""
    samples_trained: int
    """Samples of the committed rounds at the end, by the events of the commits."""


async def play(
    run_dir: Path, config: Path, *, peers: int, times: int, seed: int
) -> TotalLossOutcome:
    """Start the nodes, and kill and resume all of them `times` times. Raises LowcommError."""
    watcher, losses = Watcher(run_dir), list[TotalLoss]()
    drawn = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    async with LocalCluster(run_dir) as cluster:
        names = [f"p{number}" for number in range(peers)]

        def start(name: str, token: str) -> LocalNode:
            return cluster.start_peer(name, config, join=token, overrides=TINY_MODEL)

        nodes = await cluster.start_all(names, start)
        await watcher.rounds_of_all(peers, after=0.0, count=ROUNDS_BETWEEN)
        for _ in range(times):
            reached = await _kill(watcher, nodes)
            nodes, began = await _resume(cluster, drawn.sample(names, k=peers), drawn)
            first = await watcher.rounds_of_all(peers, after=began, count=1)
            losses.append(TotalLoss(reached, _back_to(watcher, began), first.t - began))
            await watcher.rounds_of_all(peers, after=began, count=ROUNDS_BETWEEN)
        samples, round_ = await _ledger(cluster)
        watcher.read()
    trained = sum(each.tokens for each in _surviving(watcher.events, round_)) // WINDOW
    return TotalLossOutcome(tuple(losses), have_one_state(watcher.events), samples, trained)


async def _kill(watcher: Watcher, nodes: Sequence[LocalNode]) -> int:
    """SIGKILL all daemons at once; returns the last round that one of them has committed."""
    for node in nodes:
        os.kill(node.child.pid, signal.SIGKILL)
    await asyncio.gather(*(node.child.wait() for node in nodes))
    watcher.read()
    return max(x.round for x in watcher.events if isinstance(x, Commit))


async def _resume(
    cluster: LocalCluster, names: Sequence[str], drawn: random.Random
) -> tuple[list[LocalNode], float]:
    """Resume the nodes in this order; returns them, and when the last one was started."""
    nodes: list[LocalNode] = []
    for name in names:
        await asyncio.sleep(drawn.uniform(0, APART_S / len(names)))
        nodes.append(cluster.start_node(name, ["resume", str(cluster.run_dir / name)]))
    return nodes, time.time()


def _back_to(watcher: Watcher, moment: float) -> int:
    """The last round before those that were committed after `moment`."""
    return min(x.round for x in watcher.events if isinstance(x, Commit) and x.t > moment) - 1


async def _ledger(cluster: LocalCluster) -> tuple[int, int]:
    """(committed samples, committed rounds), of one moment of one node. Raises LowcommError."""
    async with within(10.0, "an answer of a node"):
        while True:
            for status in await cluster.statuses():
                samples, round_ = status.get("samples"), status.get("outer_step")
                if isinstance(samples, int) and isinstance(round_, int):
                    return samples, round_


def _surviving(events: Sequence[Event], last: int) -> list[Commit]:
    """The commits of the rounds up to `last` that no rollback took back: of each round the
    newest."""
    commits = [x for x in events if isinstance(x, Commit) and x.round <= last]
    return list({x.round: x for x in sorted(commits, key=lambda each: each.t)}.values())


def main(
    peers: Annotated[int, typer.Option(help="Number of peers.", min=1, max=16)] = 3,
    times: Annotated[int, typer.Option(help="How often all nodes are killed.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Of the order and pauses of the resumes.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Kill all nodes of a run of real daemons at once, and resume them, again and again.

    \b
    Examples:
      python -m sims.total_loss
      python -m sims.total_loss --times 20 --json
    """
    played = play_once(partial(play, peers=peers, times=times, seed=seed), peers=peers)
    if not played.digests_equal or played.samples != played.samples_trained:
        raise LowcommError(f"the run failed: states differ, or samples are missing: {played}")
    if as_json:
        print(json.dumps(asdict(played)))  # noqa: T201
        return
    for loss in played.losses:
        print(  # noqa: T201
            f"killed at round {loss.reached}: went on from round {loss.back_to}, together after "
            f"{loss.together_s:.2f} s"
        )


if __name__ == "__main__":
    run(main)
