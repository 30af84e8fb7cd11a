"""`lowcomm demo` and `lowcomm sim`: runs of several real peers on this machine."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.config import setting_names
from protocols.types import ConfigError
from sims.cluster.names import NAMES

RunDirectory = Annotated[
    Path | None,
    typer.Option(
        "--directory", help="New or empty directory for the run's files.  [default: runs/NAME]"
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the file, e.g. run.outer_steps=10. Repeatable.",
        autocompletion=setting_names,
    ),
]


def demo(
    seed: Annotated[
        int, typer.Option(help="Seed of the model, the data, and the moment of the kill.")
    ] = 0,
    directory: RunDirectory = None,
    overrides: Overrides = None,
) -> None:
    """Three nodes train; two are killed, a new one joins.

    Real processes on this machine, for about two minutes. The first victim kills itself in the
    middle of a reduction; later the leader is killed. At the end: figures, summary.json and
    report.html.

    \b
    Examples:
      lowcomm demo
      lowcomm demo --seed 7 --directory /tmp/demo
    """
    from rich.console import Console

    from sims.cluster.demo import run_demo

    code = asyncio.run(run_demo(seed, directory, overrides or [], console=Console()))
    sys.exit(code)


def sim(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(help="TOML with [run], and [node] for all nodes.")],
    peers: Annotated[int, typer.Option(help="Number of nodes.", min=1)] = 2,
    ranks: Annotated[
        str, typer.Option(help="Ranks of each node, e.g. 2,1,1; one number applies to all.")
    ] = "1",
    directory: RunDirectory = None,
    overrides: Overrides = None,
) -> None:
    """Run several real peers as processes on this machine.

    Ctrl+C stops them all; `lowcomm resume` goes on. The command after -- is a training program of
    your own, which each node runs.

    \b
    Examples:
      lowcomm sim run.toml --peers 4
      lowcomm sim run.toml --peers 3 --ranks 2,1,1 --set run.outer_steps=20
      lowcomm sim run.toml --peers 3 -- python train.py
    """
    from rich.console import Console

    from sims.cluster.demo import run_sim

    counts = _ranks(ranks, peers)
    code = asyncio.run(
        run_sim(
            config,
            counts,
            directory,
            overrides or [],
            command=ctx.obj.command,
            console=Console(),
        )
    )
    sys.exit(code)


def resume(
    directory: Path,
    *,
    peers: int | None,
    ranks: str,
    overrides: Sequence[str] = (),
    train_on: Callable[[], None] = lambda: None,
) -> None:
    """Resume the nodes of a run directory from their newest checkpoint (`lowcomm resume`).

    `peers`: their number, if it changes; `ranks`: their ranks, as text, if these change;
    `train_on`: lets a finished run go on, once the other arguments are known to be valid.
    """
    from rich.console import Console

    from sims.cluster.resumption import resume_all, resumed_nodes

    number = peers or (len(ranks.split(",")) if "," in ranks else None)
    again, new = resumed_nodes(directory, number)
    counts = _ranks(ranks, len(again) + len(new)) if ranks else None
    train_on()
    nodes = resumed_nodes(directory, number)  # The node that trains on is the first one now.
    going = resume_all(directory, nodes, ranks=counts, overrides=overrides, console=Console())
    sys.exit(asyncio.run(going))


def _ranks(text: str, peers: int) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--ranks {text!r}: write counts such as 2,1,1")
    counts = [int(part) for part in parts]
    counts = counts * peers if len(counts) == 1 else counts
    if len(counts) != peers or peers > len(NAMES):
        raise ConfigError(
            f"--ranks {text!r}: {peers} peers need {peers} counts, or one for all; "
            f"at most {len(NAMES)} peers"
        )
    return counts
