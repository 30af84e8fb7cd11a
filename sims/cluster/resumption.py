"""Starts the nodes of a run's directory again: all of them, fewer, or new ones beside them.

Must NOT choose the state that they go on from: they find it together.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Console

from lowcomm.cli import finished
from lowcomm.config import NodeConfig
from lowcomm.startup import last_voters, node_directories, read_record, recorded_config
from protocols.types import ConfigError
from sims.cluster.launch import Watch, require_idle, supervise
from sims.cluster.local_cluster import read_plan
from sims.cluster.names import NAMES

OF_ONE_NODE = ("name", "directory", "listen", "advertise", "metrics", "ranks")
"""Keys of [node] that a new node does not take from another one."""


def resumed_nodes(run_dir: Path, number: int | None) -> tuple[list[str], list[str]]:
    """(names of nodes to start again, names of new nodes) for so many nodes; None: as many as there
    were. Raises ConfigError."""
    names = [name for name in read_plan(run_dir) if read_record(run_dir / name) is not None]
    if not names:
        raise ConfigError(
            f"{run_dir} holds nothing to resume: give the directory of a run (runs/NAME) of "
            "`lowcomm sim` or `lowcomm demo`, or that of a node (runs/NAME/NODE)"
        )
    # A node that was told to train a finished run on goes first: the others join it.
    names.sort(key=lambda name: bool(finished([run_dir / name])))
    number = number or len(names)
    names += [name for name in _nodes_in(run_dir) if name not in names][: number - len(names)]
    free = [name for name in NAMES if not (run_dir / name).exists()]
    if number > len(names) + len(free):
        raise ConfigError(f"--peers {number}: {run_dir} has room for {len(names) + len(free)}")
    return names[:number], free[: max(0, number - len(names))]


def _nodes_in(run_dir: Path) -> list[str]:
    """The nodes that train and have a directory here, also those that `lowcomm resume` left out."""
    records = [(path.name, read_record(path)) for path in node_directories(run_dir)]
    return [name for name, record in records if record is not None and not record.witness]


async def resume_all(
    run_dir: Path,
    nodes: tuple[Sequence[str], Sequence[str]],
    *,
    ranks: Sequence[int] | None,
    overrides: Sequence[str],
    console: Console,
) -> int:
    """Start nodes of a run directory again, and new ones. Together they find the state to resume.

    `nodes`: the result of `resumed_nodes`; `ranks`: a count for each of them, None: as before;
    `overrides`: keys of [node] for all. Returns the exit code. Raises ConfigError.
    """
    again, new = nodes
    require_idle(run_dir, f"see `lowcomm status {run_dir}`")
    if over := finished(node_directories(run_dir)):
        console.print(f"{run_dir} {over}", markup=False, highlight=False, soft_wrap=True)
        return 0
    configs = [recorded_config(path) for path in node_directories(run_dir)]
    run = next((config.run for config in configs if config.run is not None), None)
    if run is None:
        raise ConfigError(f"no node in {run_dir} recorded the [run] configuration: start a new run")
    _check_majority(run_dir, again)
    changed = {
        name: [*overrides, *([f"node.ranks={ranks[number]}"] if ranks else [])]
        for number, name in enumerate((*again, *new))
    }
    first = read_record(run_dir / again[0])
    command = first.command if first is not None else ()
    taken = _keys_of(recorded_config(run_dir / again[0]).node)

    async def start(watch: Watch) -> None:
        cluster, token = watch.cluster, ""
        cluster.expect(again)
        for name in again:
            sets = [word for each in changed[name] for word in ("--set", each)]
            node = cluster.start_node(name, ["resume", str(run_dir / name), *sets], token=token)
            token = token or await cluster.token_of(node)
            if not token:
                return
        for name in new:
            mine = [*taken, *changed[name]]
            cluster.start_peer(name, None, join=token, overrides=mine, command=command)

    return await supervise(run_dir, run, start, console=console)


def _check_majority(run_dir: Path, names: Sequence[str]) -> None:
    """Raise ConfigError if these nodes cannot go on: by none of their logs they are a majority of
    the voters. Nodes without a log ended before their run began, and say that themselves."""
    records = [read_record(run_dir / name) for name in names]
    own = {record.peer for record in records if record is not None}
    logs = [last_voters(run_dir / name) for name in names]
    if not any(logs) or any(2 * len(own & set(voters)) > len(voters) for voters in logs):
        return
    raise ConfigError(
        f"{', '.join(names)}: {len(own & set(logs[0]))} of the run's {len(logs[0])} voters, and a "
        "majority has to go on: start more of them; or let one begin a branch of its own, "
        f"`lowcomm recover --force {run_dir / names[0]}`, and repeat this command"
    )


def _keys_of(node: NodeConfig) -> list[str]:
    """The keys of [node] that differ from their defaults and are not about one node only."""
    plain = asdict(node)
    return [
        f"node.{key.name}={json.dumps(plain[key.name], ensure_ascii=False)}"
        for key in fields(NodeConfig)
        if key.name not in OF_ONE_NODE and plain[key.name] != key.default
    ]
