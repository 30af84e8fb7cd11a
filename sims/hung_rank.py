"""Stops a rank of a run repeatedly (SIGSTOP), and measures what the other nodes notice.

`python -m sims.hung_rank` does it with real daemons and the built-in training program on this
machine: one node has two ranks. Must NOT judge the times: its callers do.
"""

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.reports import Commit, Event, RanksLost, RanksStalled
from protocols.types import LowcommError
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.cluster.process_tree import children
from sims.leader_loss import TINY_MODEL, Watcher, have_one_state, play_once
from sims.terminal import run

NAMES = ("alpha", "beta", "gamma")
STOPPED = NAMES[0]
"""The node with two ranks."""
SETTLED_COMMITS = 5
"""Commits of all nodes before each stop."""


@dataclass(frozen=True, slots=True)
class StoppedRank:
    """One stopped rank."""

    stalled_s: float
    """Seconds from the SIGSTOP to the report of the node's daemon that its ranks stall."""
    gap_s: float
    """The longest time between two commits of the other nodes, until the node was counted again."""
    lost_s: float
    """Seconds from the SIGSTOP until the daemon replaced its ranks."""
    counted_s: float
    """Seconds from the SIGSTOP until a commit counted the node again."""


@dataclass(frozen=True, slots=True)
class HungRankOutcome:
    """The outcome of a run."""

    stops: tuple[StoppedRank, ...]
    usual_gap_s: float
    """The longest time between two commits before the first stop."""
    digests_equal: bool


async def play(run_dir: Path, config: Path, *, stops: int) -> HungRankOutcome:
    """Start three nodes, the first with two ranks, of which one is stopped `stops` times."""
    watcher, found = Watcher(run_dir), list[StoppedRank]()
    async with LocalCluster(run_dir) as cluster:

        def start(name: str, token: str) -> LocalNode:
            own = [*TINY_MODEL, f"node.ranks={2 if name == STOPPED else 1}"]
            return cluster.start_peer(name, config, join=token, overrides=own)

        alpha, *_ = await cluster.start_all(NAMES, start)
        await watcher.rounds_of_all(len(NAMES), after=0.0, count=SETTLED_COMMITS)
        usual_gap_s = _longest_gap(watcher.events, 0.0, time.time())
        for _ in range(stops):
            found.append(await _stop_one(watcher, alpha))
            await watcher.rounds_of_all(len(NAMES), after=time.time(), count=SETTLED_COMMITS)
    watcher.read()
    return HungRankOutcome(tuple(found), usual_gap_s, have_one_state(watcher.events))


async def _stop_one(watcher: Watcher, node: LocalNode) -> StoppedRank:
    os.kill(_a_rank_of(node), signal.SIGSTOP)
    moment = time.time()
    stalled = await _first(watcher, RanksStalled, node, moment)
    lost = await _first(watcher, RanksLost, node, moment)
    commit = await watcher.counted_after(lost.t, node.name)
    return StoppedRank(
        stalled_s=stalled.t - moment,
        gap_s=_longest_gap(watcher.events, moment, commit.t),
        lost_s=lost.t - moment,
        counted_s=commit.t - moment,
    )


def _a_rank_of(node: LocalNode) -> int:
    """The process of one of the node's ranks, which are children of its zygote."""
    ranks = [pid for zygote in children(node.child.pid) for pid in children(zygote)]
    if not ranks:
        raise LowcommError(f"{node.name} has no ranks that a zygote started")
    return max(ranks)


async def _first(
    watcher: Watcher, kind: type[RanksStalled | RanksLost], node: LocalNode, moment: float
) -> Event:
    """The first event of this kind of the node after `moment`. Raises LowcommError."""

    def look(events: list[Event]) -> Event | None:
        later = (x for x in events if x.name == node.name and x.t > moment)
        return next((x for x in later if isinstance(x, kind)), None)

    return await watcher.until(look, f"{kind.__name__} of {node.name}")


def _longest_gap(events: list[Event], begin: float, end: float) -> float:
    """The longest time between two commits of the other nodes, from the last one before `begin`
    (Unix time) until `end`; 0 if there are none."""
    times = sorted(e.t for e in events if isinstance(e, Commit) and e.name != STOPPED)
    here = [*[t for t in times if t <= begin][-1:], *(t for t in times if begin < t <= end)]
    return max((b - a for a, b in pairwise(here)), default=0.0)


def main(
    stops: Annotated[int, typer.Option(help="How often a rank is stopped.", min=1)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Stop one of two ranks of a node of three, again and again.

    \b
    Example:
      python -m sims.hung_rank --json
    """
    played = play_once(partial(play, stops=stops), peers=3)
    if not played.digests_equal:
        raise LowcommError(f"the run failed: states differ: {played}")
    if as_json:
        print(json.dumps(asdict(played)))  # noqa: T201
        return
    for stop in played.stops:
        print(  # noqa: T201
            f"a rank stopped: the others waited at most {stop.gap_s:.2f} s for a commit (before: "
            f"{played.usual_gap_s:.2f} s), the node was counted again after {stop.counted_s:.1f} s"
        )


if __name__ == "__main__":
    run(main)
