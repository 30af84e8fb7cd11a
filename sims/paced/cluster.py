"""Local clusters of paced peers: everything in a peer is real except its training.

For tests with many processes, where torch would be too heavy. Must NOT wait for a round or judge a
run: its callers do.
"""

from collections.abc import Sequence
from pathlib import Path

from peers.processes import own_module
from sims.cluster.local_cluster import LocalCluster, LocalNode
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
    places: Sequence[Place] = (),
) -> list[LocalNode]:
    """Start a run with the first node, and have the others join at once. `pace`: one for all nodes,
    or one for each. `places`: those of the nodes in an emulated network; (): there is none. Raises
    LowcommError."""
    paces = [pace] * len(names) if isinstance(pace, RankSpeed) else pace
    own = dict(zip(names, paces, strict=True))
    at = dict(zip(names, places, strict=True)) if places else {}

    def start(name: str, token: str) -> LocalNode:
        return start_paced(
            cluster,
            name,
            config,
            pace=own[name],
            join=token,
            overrides=overrides,
            place=at.get(name),
        )

    return await cluster.start_all(names, start)
