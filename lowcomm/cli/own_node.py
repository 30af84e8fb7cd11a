"""The commands `lowcomm leave`, `lowcomm checkpoint` and `lowcomm ranks`, about one node.

No other node has to agree. Must NOT import anything slow: the command line imports this module
before it listens.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowcomm.cli.acts_command import AGAIN_S, WAIT_S, ask, ask_run, running
from protocols.types import ConfigError, LowcommError

if TYPE_CHECKING:
    from lowcomm.startup.identity import NodeRecord

LEFT_S = 300.0
"""Seconds to wait for the end of a daemon, which writes its last checkpoint first."""
Node = Annotated[
    Path, typer.Argument(help="The directory of a node, or of a run with one node, that runs here.")
]


def leave(directory: Node) -> None:
    """Let a node of this machine leave its run.

    The node does the same as at Ctrl+C: it tells the others, which go on without it, and writes a
    checkpoint. The command waits for its end. `lowcomm resume` brings it back.

    \b
    Examples:
      lowcomm leave runs/joined/beta
      lowcomm leave runs/first
    """
    from lowcomm.startup.identity import runs
    from peers.ipc import StopPeer

    node, record = _one_running(directory)
    ask(record, StopPeer(), timeout_s=WAIT_S / 4)
    deadline = time.monotonic() + LEFT_S
    while runs(node, record):
        if time.monotonic() > deadline:
            raise LowcommError(
                f"{record.name} was asked to leave, and has not ended within {LEFT_S:g} s: see "
                f"`lowcomm status {node}`"
            )
        time.sleep(AGAIN_S)
    print(_outcome(node, record))  # noqa: T201


def checkpoint(
    directory: Node,
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", help="So long to wait for it.")
    ] = 3600.0,
) -> None:
    """Let a node of this machine write a checkpoint.

    It is of the state after the next round, in addition to those of node.checkpoint_every_rounds.
    In a pause the node writes its present state at once; with a per-step method, the next copy of
    the state that is kept. The command waits until the checkpoint is complete.

    \b
    Examples:
      lowcomm checkpoint runs/first/gpu1
      lowcomm checkpoint runs/first/gpu1 --within 600
    """
    from peers.ipc import MakeCheckpoint

    if not within > 0:
        raise ConfigError(f"--within must be positive, got {within:g}")
    _, record = _one_running(directory)
    answer = ask_run(record, lambda again: MakeCheckpoint(again=again), wait_s=within)
    if answer is None:
        raise LowcommError(
            f"no round has ended within {within:g} s: {record.name} writes the checkpoint after "
            "the next one"
        )
    print(f"{record.name} has written {answer['done']}")  # noqa: T201


def ranks(
    ctx: typer.Context,
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="node.other_hosts_listen of the node.")
    ],
    secret: Annotated[
        Path,
        typer.Option(
            "--secret",
            metavar="FILE",
            help="A copy of hosts-secret.pem, which the daemon makes in the node's directory. With "
            "it a program can act as a host of this node: let no other user read it.",
        ),
    ],
    host: Annotated[
        int, typer.Option("--host", help="Number of this host in node.other_hosts.", min=1)
    ] = 1,
) -> None:
    """Run ranks of a node on a further host.

    The daemon says how many, and when to start. If the connection is lost, the ranks end, and the
    node's ranks begin again on all hosts once this command has reached the daemon again. It ends
    with the node. The command after -- is a training program of your own, as on the first host.

    \b
    Examples:
      lowcomm ranks gpu1:29400 --secret hosts-secret.pem
      lowcomm ranks gpu1:29400 --secret hosts.pem --host 2 -- torchrun train.py
    """
    import asyncio

    from lowcomm.rank_control import program_spawner
    from peers.hosts import run_ranks
    from peers.security import secret_tls
    from peers.sockets import parse_address

    there, tls = parse_address(address, key="HOST:PORT"), secret_tls(secret)

    async def run() -> None:
        spawner = program_spawner(ctx.obj.command)
        await run_ranks(there, host=host, tls=tls, spawner=spawner, say=_say)

    asyncio.run(run())


def _one_running(directory: Path) -> tuple[Path, "NodeRecord"]:
    """The only node that runs in a directory, and its record. Raises ConfigError."""
    from lowcomm.startup.identity import node_directories

    nodes, found = node_directories(directory), list[tuple[Path, "NodeRecord"]]()
    for node in nodes:
        try:
            found.append((node, running(node)))
        except ConfigError:
            if nodes == [directory]:
                raise
    if len(found) != 1:
        named = ", ".join(str(node) for node, _ in found) or "none"
        raise ConfigError(f"give the directory of a node that runs; of {directory}: {named}")
    return found[0]


def _outcome(node: Path, record: "NodeRecord") -> str:
    """What has become of a node, from its own events."""
    from lowcomm.reports.events import Checkpoint, Finished, Start, Stopped
    from lowcomm.reports.timeline import read_timeline

    end, kept = "has ended", ""
    for event in read_timeline(node).events:
        match event:
            case Start():
                end, kept = "has ended", ""
            case Stopped(why=why):
                end = f"has left the run ({why})"
            case Finished():
                end = "had finished the run"
            case Checkpoint(path=path):
                kept = f"; its last checkpoint is {path}"
            case _:
                pass
    return f"{record.name} {end}{kept}"


def _say(text: str) -> None:
    print(f"lowcomm ranks: {text}", file=sys.stderr, flush=True)  # noqa: T201
