"""Counts living nodes that are declared lost, on a busy machine or over bad links.

`python -m sims.false_loss` does it with real daemons and paced ranks on this machine. Nothing is
killed, so each loss is a false one, and each election after the first is needless. Must NOT judge
the numbers: its callers do.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.reports import Commit, Elected, Lost
from peers.processes import dying_with_us, start_child
from protocols.types import LowcommError
from sims.cluster.local_cluster import LocalCluster
from sims.leader_loss import SWIFT, Watcher, have_one_state, play_once
from sims.paced.cluster import start_all
from sims.silent_peer import longest_gap, means_of, network
from sims.terminal import bar, run
from sims.wan import SHARE, TIME, Means, WanLink, parse

BUSY = "while True: pass"
LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlan:
    """The conditions of one run."""

    seconds: float
    peers: int = 3
    load: int = 0
    """Processes that compute all the time, beside the nodes."""
    loss: float = 0.0
    """The share of packets that are lost."""
    delay_s: float = 0.0
    """Delay of each direction of the links."""
    means: Means = "netns"


@dataclass(frozen=True, slots=True)
class FalseLossOutcome:
    """The outcome of a run, from the first round that counted all nodes."""

    seconds: float
    load_1min: float
    """The load of the machine at the end."""
    lost: tuple[str, ...]
    """Each false loss: "NODE: REASON"."""
    elections: int
    rounds: int
    rounds_of_all: int
    """Rounds that counted all nodes."""
    longest_gap_s: float
    """The longest time between two commits."""
    digests_equal: bool


async def play(run_dir: Path, config: Path, plan: LossPlan) -> FalseLossOutcome:
    """Start the nodes, and watch them for `plan.seconds`. Raises LowcommError."""
    watcher = Watcher(run_dir)
    async with AsyncExitStack() as stack:
        places = ()
        if plan.loss or plan.delay_s:
            link = WanLink(loss=plan.loss, delay_s=plan.delay_s)
            places = stack.enter_context(network(link, plan.peers, plan.means)).places
        cluster = await stack.enter_async_context(LocalCluster(run_dir))
        names = [f"p{number}" for number in range(plan.peers)]
        await start_all(cluster, names, config, pace=SWIFT, places=places)
        await watcher.rounds_of_all(plan.peers, after=0.0, count=1)
        for _ in range(plan.load):
            busy = start_child(dying_with_us([sys.executable, "-c", BUSY]), env=dict(os.environ))
            stack.push_async_callback(busy.stop)
        began = time.time()
        await _wait(plan.seconds)
        watcher.read()
        return _judged(watcher, plan, began)


async def _wait(seconds: float) -> None:
    began = time.monotonic()
    with bar("seconds", int(seconds)) as (advance, _):
        for second in range(int(seconds)):
            await asyncio.sleep(began + second + LOOK_S - time.monotonic())
            advance(f"{second + 1} s")


def _judged(watcher: Watcher, plan: LossPlan, began: float) -> FalseLossOutcome:
    events, ended = [x for x in watcher.events if x.t > began], time.time()
    commits = [x for x in events if isinstance(x, Commit)]
    return FalseLossOutcome(
        seconds=ended - began,
        load_1min=os.getloadavg()[0],
        lost=tuple(sorted({f"{x.member_name}: {x.why}" for x in events if isinstance(x, Lost)})),
        elections=len({x.index for x in events if isinstance(x, Elected)}),
        rounds=len({x.round for x in commits}),
        rounds_of_all=len({x.round for x in commits if len(x.roster) == plan.peers}),
        longest_gap_s=longest_gap(watcher.events, began, ended),
        digests_equal=have_one_state(watcher.events),
    )


Q = typer.Option


def main(
    minutes: Annotated[float, Q(help="How long the nodes are watched.", min=0.1)] = 30.0,
    peers: Annotated[int, Q(help="Number of nodes.", min=2, max=16)] = 3,
    load: Annotated[int, Q(help="Processes that compute all the time.", min=0, max=200)] = 0,
    loss: Annotated[str, Q(help="The share of packets that are lost.")] = "0%",
    rtt: Annotated[str, Q(help="Round trip of the links.")] = "0ms",
    means: Annotated[str, Q(help="netns (needs root) or proxy, for links.")] = "netns",
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count the living nodes that a run declares lost on a busy machine or over bad links.

    \b
    Examples:
      python -m sims.false_loss --load 20 --json
      python -m sims.false_loss --loss 10% --rtt 200ms
    """
    plan = LossPlan(
        seconds=60 * minutes,
        peers=peers,
        load=load,
        loss=parse(loss, SHARE, what="--loss"),
        delay_s=parse(rtt, TIME, what="--rtt") / 2,
        means=means_of(means),
    )
    played = play_once(partial(play, plan=plan), peers=peers)
    if not played.digests_equal:
        raise LowcommError(f"the run failed: states differ: {played}")
    if as_json:
        print(json.dumps(asdict(played)))  # noqa: T201
        return
    print(  # noqa: T201
        f"{played.seconds:.0f} s at a load of {played.load_1min:.1f}: {len(played.lost)} false "
        f"losses, {played.elections} elections; {played.rounds} rounds, {played.rounds_of_all} of "
        f"them of all nodes; {played.longest_gap_s:.2f} s between two commits at most"
    )
    for each in played.lost:
        print(f"lost: {each}")  # noqa: T201


if __name__ == "__main__":
    run(main)
