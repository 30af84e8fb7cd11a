"""The time that nodes of different speeds wait for each other: `python -m benchmarks waiting`.

Real daemons on this machine with ranks that sleep instead of training (sims/paced/rank.py); the
figures come from their event files. Must NOT judge.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.machine import machine
from lowcomm.reports import Commit, Event, Ready, read_timeline
from protocols.types import ConfigError, LowcommError
from sims.cluster import LOG, LocalCluster
from sims.leader_loss import write_config
from sims.paced import TENSORS, RankSpeed, start_all
from sims.terminal import run

FRAGMENT = 0
LATER_S = 60.0
"""Seconds of timeout beyond the expected time of all rounds."""
Q = typer.Option


@dataclass(frozen=True, slots=True)
class Waited:
    """Waiting of one node, in all rounds but the first, in which nodes start one after the
    other."""

    name: str
    steps: int
    for_others: float
    """Share of the time from the node's contributions to the last ones of the rounds."""
    for_exchange: float
    """Share of the time from the last contributions to the commits."""


def main(
    speeds: Annotated[str, Q(help="Speeds of the nodes, relative to the slowest.")] = "1,1,2,4",
    step: Annotated[float, Q(help="Seconds of a step at speed 1.", min=0.0)] = 0.13,
    round_s: Annotated[
        float, Q("--round", help="Seconds of a round; 0: --steps steps.", min=0.0)
    ] = 4.0,
    steps: Annotated[int, Q(help="Most inner steps of a round.", min=1)] = 500,
    rounds: Annotated[int, Q(help="Number of rounds.", min=3)] = 12,
    method: Annotated[str, Q(help="Name of the method, as in [run.method].")] = "diloco",
    fragments: Annotated[
        int | None, Q(help="Fragments of the model, if the method has them.", min=1, max=TENSORS)
    ] = None,
    overlap: Annotated[int | None, Q(help="overlap_steps, if the method has them.", min=0)] = None,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """The share of the time that each node waits for the others, and for the exchange.

    If the method's nodes train on meanwhile, it is the share in which a round is not complete yet.

    \b
    Examples:
      python -m benchmarks waiting
      python -m benchmarks waiting --speeds 1,1,2,4 --round 0 --steps 31
      python -m benchmarks waiting --speeds 1,2,2 --step 0.2 --round 0 --steps 8 \\
        --method decoupled_diloco --fragments 4 --overlap 2
    """
    try:
        paces = [RankSpeed(step_s=step / float(speed)) for speed in speeds.split(",")]
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"--speeds {speeds}: give numbers above 0, comma-separated, as in 1,1,2"
        ) from None
    longest_s = round_s or steps * max(pace.step_s for pace in paces)
    given = {"fragments": fragments, "overlap_steps": overlap}
    keys = {"inner_steps": steps, "round_s": round_s}
    keys |= {key: value for key, value in given.items() if value is not None}
    table = "\n".join([f'name = "{method}"', *(f"{key} = {keys[key]}" for key in keys)])
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        place = Path(directory)
        config = write_config(place, peers=len(paces), rounds=rounds, method=table)
        asyncio.run(_play(place / "run", config, paces, limit_s=rounds * longest_s + LATER_S))
        events = read_timeline(place / "run").events
    found, took_s = waited(events), mean_round_s(events)
    alone_s = round_s or steps * min(pace.step_s for pace in paces)
    if as_json:
        asked = {"method": method, "speeds": speeds, "step_s": step, **keys, "rounds": rounds}
        times = {"mean_round_s": took_s, "fastest_alone_s": alone_s}
        nodes = [asdict(each) for each in found]
        print(json.dumps({**asked, **times, "machine": machine(), "nodes": nodes}))
        return
    console = Console()
    times = f"a round took {took_s:.3f} s; the fastest node alone takes {alone_s:.3f} s"
    console.print(times, highlight=False)
    for each in found:
        shares = f"waited {each.for_others:.1%} for others, {each.for_exchange:.1%} for exchange"
        console.print(f"{each.name}: {each.steps} steps, {shares}", highlight=False)


def waited(events: Sequence[Event]) -> list[Waited]:
    """Waiting of each node, from its events, sorted by name."""
    ready: dict[int, dict[str, Ready]] = {}
    applied: dict[str, dict[int, float]] = {}
    for event in events:
        if isinstance(event, Ready) and event.fragment == FRAGMENT:
            ready.setdefault(event.round, {})[event.name] = event
        elif isinstance(event, Commit) and event.fragment == FRAGMENT:
            applied.setdefault(event.name, {})[event.round] = event.t
    found: list[Waited] = []
    for name, at in sorted(applied.items()):
        counted = [number for number in at if number > 1]
        lasts = {number: max(x.t for x in ready[number].values()) for number in counted}
        total_s = at[max(at)] - at[min(at)]
        own = {number: ready[number][name] for number in counted}
        found.append(
            Waited(
                name=name,
                steps=sum(each.steps for each in own.values()),
                for_others=sum(lasts[number] - own[number].t for number in counted) / total_s,
                for_exchange=sum(at[number] - lasts[number] for number in counted) / total_s,
            )
        )
    return found


def mean_round_s(events: Sequence[Event]) -> float:
    """Mean seconds of a round, from the end of the first round to that of the last."""
    ends: dict[int, float] = {}
    for event in events:
        if isinstance(event, Commit) and event.fragment == FRAGMENT:
            ends[event.round] = max(event.t, ends.get(event.round, 0.0))
    first, last = min(ends), max(ends)
    return (ends[last] - ends[first]) / (last - first)


async def _play(run_dir: Path, config: Path, paces: Sequence[RankSpeed], *, limit_s: float) -> None:
    """Run the cluster until it is finished. Raises LowcommError if a node fails or the time is
    over."""
    names = [f"n{number}" for number in range(len(paces))]
    async with LocalCluster(run_dir) as cluster:
        nodes = await start_all(cluster, names, config, pace=paces)
        try:
            async with asyncio.timeout(limit_s):
                codes = [await node.child.wait() for node in nodes]
        except TimeoutError:
            raise LowcommError(f"the run takes longer than {limit_s:g} s") from None
        for node, code in zip(nodes, codes, strict=True):
            if code:
                log = (node.directory / LOG).read_text(encoding="utf-8", errors="replace")
                raise LowcommError(f"{node.name} ended with {code}: {log.strip()[-500:]}")


if __name__ == "__main__":
    try:
        run(main)
    except LowcommError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
