"""Memory of the ranks of a node that trains the built-in model: `python -m benchmarks ranks`.

Real nodes of one rank and of several ranks under FSDP2, one after the other. The peak of an idle
rank, which trains a tiny model, is subtracted; memory shared with the daemon counts as far as the
rank has touched it. Must NOT judge speed: the steps are few and small.
"""

import asyncio
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.exchanging import proc
from benchmarks.machine import machine
from lowcomm.reports import Layout, read_timeline
from protocols.types import ConfigError, LowcommError
from sims.cluster import LocalCluster, descendants
from sims.leader_loss import write_config
from sims.terminal import Advance, bar, run

TIMEOUT_S = 1800.0
"""Timeout of one run."""
LOOK_S = 0.02
ROUNDS = 3
MODELS = {
    "tiny": ("hidden_size=64", "layers=2", "heads=4", "kv_heads=4", "intermediate_size=128"),
    "10m": ("hidden_size=256", "layers=12", "heads=8", "kv_heads=8", "intermediate_size=688"),
    "100m": ("hidden_size=768", "layers=14", "heads=12", "kv_heads=12", "intermediate_size=2048"),
}
"""Sizes by name. A vocabulary of bytes leaves nearly all parameters to the blocks."""
OVERRIDES = (
    "run.method.inner_steps=2",
    "run.data.batch=4",
    "run.model.context=64",
    "run.data.eval_window=64",
    "node.hang_timeout_s=86400.0",
    "node.first_step_timeout_s=86400.0",
    "node.checkpoint_every_rounds=1",
)
Q = typer.Option


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Peak memory of the rank of a node that needs most, in bytes."""

    ranks: int
    peak: int
    net: int
    """Without the peak of an idle rank."""


def main(
    model: Annotated[str, Q(help=f"Model: {', '.join(MODELS)}.")] = "100m",
    ranks: Annotated[int, Q(help="Ranks of the sharded node.", min=2, max=16)] = 2,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """Peak memory of one rank of a node of several, beside that of a node's only rank.

    \b
    Examples:
      python -m benchmarks ranks --json
      python -m benchmarks ranks --model 10m --ranks 4
    """
    if model not in MODELS:
        raise ConfigError(f"--model {model}: known are {', '.join(MODELS)}")
    with bar("runs", 3) as (advance, _):
        parameters, found = measure(model, ranks, advance)
    alone, sharded = found
    share = sharded.net / alone.net
    if as_json:
        told = {"model": model, "parameters": parameters, "machine": machine()}
        told |= {"ranks": [asdict(each) for each in found], "share": round(share, 4)}
        print(json.dumps(told))
        return
    console = Console(highlight=False)
    console.print(f"{parameters / 1e6:.1f} M parameters; peak of a rank, without an idle rank's:")
    for each in found:
        console.print(
            f"  {each.ranks} rank{'s' * (each.ranks > 1)}: {each.net / 2**20:,.0f} MiB, "
            f"{each.net / parameters:.1f} bytes a parameter"
        )
    console.print(f"  of {ranks} ranks each needs {share:.1%} of what one rank needs")


def measure(model: str, ranks: int, advance: Advance) -> tuple[int, list[RankMemory]]:
    """(number of parameters; memory of a node's only rank, and of a rank of several)."""
    _, idle = asyncio.run(_peak("tiny", 1))
    advance("a tiny model")
    found: list[RankMemory] = []
    parameters = 0
    for count in (1, ranks):
        parameters, peak = asyncio.run(_peak(model, count))
        found.append(RankMemory(count, peak, peak - idle))
        advance(f"{model}, {count} rank{'s' * (count > 1)}")
    return parameters, found


async def _peak(model: str, ranks: int) -> tuple[int, int]:
    """Run a node: (number of parameters, peak bytes of its largest rank)."""
    settings = [*OVERRIDES, f"node.ranks={ranks}", *(f"run.model.{key}" for key in MODELS[model])]
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        config = write_config(Path(directory), peers=1, rounds=ROUNDS)
        async with LocalCluster(Path(directory) / "run") as cluster, asyncio.timeout(TIMEOUT_S):
            node = cluster.start_peer("alpha", config, overrides=settings)
            end = asyncio.ensure_future(node.child.wait())
            peak = 0
            while not end.done():
                peak = max(peak, *(_peak_of(pid) for pid in descendants(node.child.pid)), 0)
                await asyncio.sleep(LOOK_S)
            if end.result():
                raise LowcommError(f"the node ended: {node.last_words()}")
            events = read_timeline(node.directory).events
    return next(each.params for each in events if isinstance(each, Layout)), peak


def _peak_of(pid: int) -> int:
    """Peak bytes of a process; 0 if it has ended."""
    try:
        return proc.memory(pid).peak_rss
    except (OSError, KeyError):
        return 0


if __name__ == "__main__":
    run(main)
