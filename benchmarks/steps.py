"""The time of one step of a stepwise run: `python -m benchmarks steps --peers 2 --kib 4 --json`.

Real daemons and ranks on this machine take turns with gloo's processes in one run. Must NOT compare
figures of two runs: the machine may be busy.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.exchanging.lowcomm_system import NODE_SETTINGS
from benchmarks.exchanging.network import default_congestion
from benchmarks.machine import machine
from peers.processes import dying_with_us, start_child
from protocols.types import LowcommError
from sims.cluster import LocalCluster, LocalNode
from sims.leader_loss import write_config
from sims.terminal import run

TIMEOUT_S = 180.0
WARMUP_STEPS = 100
"""First steps of each turn, which are not timed."""
EXIT_FAILED = 1
Q = typer.Option
Samples = dict[str, list[float]]
"""By system, the seconds of its steps."""


def main(
    peers: Annotated[int, Q(help="Number of peers.", min=2, max=16)] = 2,
    kib: Annotated[int, Q(help="KiB of fp32 in each payload.", min=1, max=65536)] = 4,
    steps: Annotated[int, Q(help="Timed steps of each system in each turn.", min=100)] = 1000,
    turns: Annotated[int, Q(help="Turns of each system.", min=1)] = 4,
    encrypted: Annotated[bool, Q("--encrypted", help="Encrypt the links of lowcomm.")] = False,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """The time from a rank's payload handed over to the mean of all in the rank's own buffer.

    \b
    Examples:
      python -m benchmarks steps
      python -m benchmarks steps --peers 4 --kib 64 --encrypted --json
    """
    taken: Samples = {}
    for _ in range(turns):
        for system, seconds in asyncio.run(
            _turn(peers, 256 * kib, steps, encrypted=encrypted)
        ).items():
            taken.setdefault(system, []).extend(seconds)
    figures = {system: told(seconds) for system, seconds in taken.items()}
    if as_json:
        asked = {"peers": peers, "kib": kib, "steps": steps, "turns": turns, "encrypted": encrypted}
        congestion = {
            "tcp_congestion_control": default_congestion()
        }  # lowcomm's sockets use reno on loopback.
        print(json.dumps({**asked, **congestion, "machine": machine(), "results": figures}))
        return
    for system, figure in figures.items():
        print(f"{system:20}", *(f"{name} {value:.3f}" for name, value in figure.items()))


def told(seconds: Sequence[float]) -> Mapping[str, float]:
    """Quantiles and mean over all steps of all ranks."""
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "p10_ms": 1e3 * cuts[9],
        "p50_ms": 1e3 * cuts[49],
        "p99_ms": 1e3 * cuts[98],
        "mean_ms": 1e3 * statistics.fmean(seconds),
        "steps": len(seconds),
    }


async def _turn(peers: int, elements: int, steps: int, *, encrypted: bool) -> Samples:
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        async with asyncio.timeout(2 * TIMEOUT_S):
            steps += WARMUP_STEPS
            ours = await _ours(Path(directory), peers, elements, steps, encrypted=encrypted)
            gloo = await _gloo(Path(directory), peers, elements, steps)
    return {"lowcomm": ours, **gloo}


async def _ours(
    directory: Path, peers: int, elements: int, steps: int, *, encrypted: bool
) -> list[float]:
    config = write_config(directory, peers=peers, rounds=steps, method='name = "allreduce"')
    settings = [*NODE_SETTINGS, f"node.insecure={str(not encrypted).lower()}"]
    files = {f"p{number}": directory / f"rank-{number}.json" for number in range(peers)}
    async with LocalCluster(directory / "run") as cluster:

        def start(name: str, token: str) -> LocalNode:
            program = ["-m", "benchmarks.exchanging.step_rank", str(elements), str(files[name])]
            command = [sys.executable, *program]
            return cluster.start_peer(name, config, join=token, overrides=settings, command=command)

        for node in await cluster.start_all(list(files), start):
            if await node.child.wait():
                raise LowcommError(f"{node.name} failed: {node.last_words()}")
    return [x for file in files.values() for x in json.loads(file.read_text())[WARMUP_STEPS:]]


async def _gloo(directory: Path, peers: int, elements: int, steps: int) -> Samples:
    program = [sys.executable, "-m", "benchmarks.exchanging.gloo_steps"]
    children = [
        start_child(
            dying_with_us([*program, *map(str, (rank, peers, elements, steps, directory))]),
            env=dict(os.environ),
        )
        for rank in range(peers)
    ]
    for child in children:
        if await child.wait():
            raise LowcommError("gloo failed")
    found: Samples = {}
    for rank in range(peers):
        taken: Samples = json.loads((directory / f"gloo-{rank}.json").read_text())
        for name, seconds in taken.items():
            found.setdefault(f"gloo {name}", []).extend(seconds[WARMUP_STEPS:])
    return found


if __name__ == "__main__":
    try:
        run(main)
    except LowcommError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
