"""The plan's compute shares beside those of runs on emulated lines: `python -m benchmarks plan`.

Real daemons in network namespaces, with ranks that sleep instead of training (sims/paced/rank.py),
so that the time of a step is known. Must NOT fit the plan to the runs.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from lowcomm.config import load_config
from lowcomm.methods import Parameter
from lowcomm.planning import NodeLine, layout_of, load_of
from lowcomm.reports import Commit, Event, read_timeline
from protocols.types import ConfigError, LowcommError
from sims.cluster import LOG, LocalCluster
from sims.leader_loss import write_config
from sims.paced import FRAGMENT, RankSpeed, start_all, tensors
from sims.terminal import bar
from sims.wan import Place, Wan, WanLink

WITHIN = 0.15
"""The planned share may differ from the measured one by this share of it."""
LATER_S = 90.0
"""Seconds of timeout beyond the planned time of all rounds."""
SECONDS = 25.0
"""Planned duration of a run."""
ROUNDS_MIN = 8
Q = typer.Option


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedRun:
    """One run; the rate is that of each node's line, shared equally by its connections."""

    name: str
    method: str
    """The lines of [run.method]."""
    peers: int
    rate_bps: float
    round_trip_s: float
    step_s: float = 0.1
    elements: int = 1 << 18


RUNS = (
    EmulatedRun(
        name="diloco",
        method='name = "diloco"\ninner_steps = 10',
        peers=2,
        rate_bps=4e7,
        round_trip_s=0.04,
        elements=1 << 19,
    ),
    EmulatedRun(
        name="diloco int8, 3 nodes",
        method='name = "diloco"\ninner_steps = 10\ncontribution_codec = "int8"\n'
        'result_codec = "int8"',
        peers=3,
        rate_bps=1e7,
        round_trip_s=0.1,
    ),
    EmulatedRun(
        name="streaming_diloco fp4",
        method='name = "streaming_diloco"\ninner_steps = 12\nfragments = 4\noverlap_steps = 2\n'
        'contribution_codec = "fp4"\nresult_codec = "bf16"',
        peers=2,
        rate_bps=3e6,
        round_trip_s=0.04,
    ),
    EmulatedRun(
        name="allreduce",
        method='name = "allreduce"\ncommit_every_steps = 8\nsnapshot_every_steps = 32',
        peers=2,
        rate_bps=2e7,
        round_trip_s=0.04,
        step_s=0.4,
        elements=1 << 17,
    ),
    EmulatedRun(
        name="sparseloco, 3 nodes",
        method='name = "sparseloco"\ninner_steps = 10',
        peers=3,
        rate_bps=2e6,
        round_trip_s=0.1,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Shares of the time in which a node computes."""

    name: str
    rounds: int
    planned: float
    measured: float

    @property
    def off(self) -> float:
        return self.planned / self.measured - 1


def main(
    only: Annotated[str, Q(help="Runs with a name that begins so; empty: all.")] = "",
    seconds: Annotated[float, Q(help="Planned seconds of each run.", min=5)] = SECONDS,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """The planned share of computing time beside the measured one, in runs on emulated lines.

    It needs root, for network namespaces. Exit status 1 if a share differs by more than 15 %.

    \b
    Examples:
      python -m benchmarks plan
      python -m benchmarks plan --only diloco --seconds 60 --json
    """
    chosen = [each for each in RUNS if each.name.startswith(only)]
    if not chosen:
        raise ConfigError(f"--only {only}: there are {'; '.join(each.name for each in RUNS)}")
    found: list[Compared] = []
    with bar("runs", len(chosen)) as (advance, _):
        for each in chosen:
            found.append(compared(each, seconds=seconds))
            advance(each.name)
    if as_json:
        runs = [{**asdict(each), "off": each.off} for each in found]
        print(json.dumps({"within": WITHIN, "machine": machine(), "runs": runs}))
    else:
        Console().print(table(found))
    if far := [each.name for each in found if abs(each.off) > WITHIN]:
        raise LowcommError(f"more than {WITHIN:.0%} from the measured share: {', '.join(far)}")


def compared(run: EmulatedRun, *, seconds: float) -> Compared:
    """Play one run, and compare. Raises LowcommError."""
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        place = Path(directory)
        probe = write_config(place, peers=run.peers, rounds=1, method=run.method)
        planned, steps = planned_share(run, probe)
        rounds = max(round(seconds * planned / (steps * run.step_s)), ROUNDS_MIN)
        config = write_config(place, peers=run.peers, rounds=rounds, method=run.method)
        link = WanLink(rate_bps=run.rate_bps / (run.peers - 1), delay_s=run.round_trip_s / 2)
        with Wan(link, peers=run.peers, means="netns") as wan:
            asyncio.run(_play(place / "run", config, run, wan.places, limit_s=seconds + LATER_S))
        events = read_timeline(place / "run").events
    return Compared(
        name=run.name,
        rounds=rounds,
        planned=planned,
        measured=measured_share(events, step_s=run.step_s),
    )


def planned_share(run: EmulatedRun, config: Path) -> tuple[float, int]:
    """(the planned share, inner steps of a round)."""
    agreed = load_config(config).run
    assert agreed is not None, "write_config writes one"
    method = agreed.method
    layout = layout_of([Parameter(each.name, each.shape) for each in tensors(run.elements)], method)
    line = NodeLine(rate_bps=run.rate_bps, round_trip_s=run.round_trip_s)
    load = load_of(method, layout, nodes=run.peers)
    return load.share_on(line, step_s=run.step_s), load.steps


def measured_share(events: Sequence[Event], *, step_s: float) -> float:
    """The time of the steps between the first commit and the last one, as a share of the time that
    passed. Both count when the last node applied them. Raises LowcommError."""
    ends: dict[int, float] = {}
    for event in events:
        if isinstance(event, Commit) and event.fragment == FRAGMENT:
            ends[event.inner_step] = max(event.t, ends.get(event.inner_step, 0.0))
    if len(ends) < 2:
        raise LowcommError(f"{len(ends)} commits: there is no time between two to measure")
    first, last = min(ends), max(ends)
    return (last - first) * step_s / (ends[last] - ends[first])


def table(found: Sequence[Compared]) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("run")
    for heading in ("rounds", "planned", "measured", "off"):
        shown.add_column(heading, justify="right")
    for each in found:
        shares = (f"{each.planned:.1%}", f"{each.measured:.1%}", f"{each.off:+.1%}")
        shown.add_row(each.name, str(each.rounds), *shares)
    return shown


async def _play(
    run_dir: Path, config: Path, run: EmulatedRun, places: Sequence[Place], *, limit_s: float
) -> None:
    """Run the cluster until it is finished. Raises LowcommError if a node fails or the time is
    over."""
    names = [f"n{number}" for number in range(run.peers)]
    pace = RankSpeed(step_s=run.step_s, elements=run.elements)
    async with LocalCluster(run_dir) as cluster:
        nodes = await start_all(cluster, names, config, pace=pace, places=places)
        try:
            async with asyncio.timeout(limit_s):
                codes = [await node.child.wait() for node in nodes]
        except TimeoutError:
            raise LowcommError(f"{run.name} takes longer than {limit_s:g} s") from None
        for node, code in zip(nodes, codes, strict=True):
            if code:
                log = (node.directory / LOG).read_text(encoding="utf-8", errors="replace")
                raise LowcommError(f"{node.name} ended with {code}: {log.strip()[-500:]}")
