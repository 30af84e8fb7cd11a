"""Local clusters of paced peers: everything in a peer is real except its training.

For tests with many processes, where torch would be too heavy. Must NOT wait for a round or judge a
run: its callers do.
"""

from collections.abc import Sequence
from pathlib import Path

from peers.processes import own_module
from protocols.types import LowcommError
from sims.cluster.local_cluster import LOG, LocalCluster, LocalNode
from sims.paced.rank import PACE, RankSpeed
from sims.wan.network import Place


def paced_command(pace: RankSpeed = PACE) -> list[str]:
    """The ranks' program: the arguments of `lowcomm peer` after its `--`."""
    program = own_module("sims.paced.rank")
    sizes = ["--elements", str(pace.elements), "--columns", str(pace.columns)]
    names = ["--tensors", str(pace.tensors), "--name-chars", str(pace.name_chars)]
    return [*program, "--step-s", repr(pace.step_s), *sizes, *names]


def start_paced(
    cluster: LocalCluster,
    name: str,
    config: Path | None,
    *,
    pace: RankSpeed = PACE,
    join: str = "",
    overrides: Sequence[str] = (),
    fault: str = "",
    place: Place | None = None,
) -> LocalNode:
    """Start a peer as `LocalCluster.start_peer` does, with paced ranks."""
    command = paced_command(pace)
    return cluster.start_peer(
        name,
        config,
        join=join,
        overrides=overrides,
        fault=fault,
        command=command,
        place=place,
    )


async def start_all(
    cluster: LocalCluster,
    names: Sequence[str],
    config: Path,
    *,
    pace: RankSpeed | Sequence[RankSpeed] = PACE,
    overrides: Sequence[str] = (),
) -> list[LocalNode]:
    """Start a run with the first node, and have the others join at once. `pace`: one for all nodes,
    or one for each. Raises LowcommError."""
    paces = [pace] * len(names) if isinstance(pace, RankSpeed) else pace
    first = start_paced(cluster, names[0], config, pace=paces[0], overrides=overrides)
    token = await cluster.token_of(first)
    if not token:
        raise LowcommError(f"{first.name} ended at its start: see {first.directory / LOG}")
    others = [
        start_paced(cluster, name, config, pace=own, join=token, overrides=overrides)
        for name, own in zip(names[1:], paces[1:], strict=True)
    ]
    return [first, *others]
