"""Nodes with a GPU and nodes without in one run: one state, and training goes on after a loss."""

import asyncio
import math
import os
import signal
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, Evaluated, Finished, RanksLost
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.cluster.process_tree import descendants
from tests.cluster.method_runs import check_one_state
from tests.cluster.running import (
    commits,
    commits_until,
    marked_processes,
    of,
    write_config,
)

pytestmark = [pytest.mark.gpu, pytest.mark.long]
DEVICES = {"alpha": "cuda", "beta": "cpu", "gamma": "cuda"}
ROUNDS = 12
UNTRAINED_LOSS = 5.5
"""The logarithm of 256 bytes."""
METHODS = {
    "diloco": "inner_steps = 5",
    "eager": 'name = "eager_diloco"\ninner_steps = 5\ncontribution_codec = "int8"',
    "streaming": 'name = "streaming_diloco"\ninner_steps = 6\nfragments = 3\noverlap_steps = 2\n\
mixing = 0.5\ncontribution_codec = "int8"',
    "sparseloco": 'name = "sparseloco"\ninner_steps = 5',
    "allreduce": 'name = "allreduce"',
    "flexdemo": 'name = "flexdemo"',
    "flexdemo-adamw": 'name = "flexdemo"\nstep = "adamw"',
}


async def start_all(cluster: LocalCluster, config: Path) -> None:
    def start(name: str, token: str) -> LocalNode:
        sets = [f'node.device="{DEVICES[name]}"', "node.checkpoint_every_rounds=2"]
        return cluster.start_peer(name, config, join=token, overrides=sets)

    await cluster.start_all(list(DEVICES), start)


@pytest.mark.deadline(200)
@pytest.mark.parametrize("method", METHODS)
def test_nodes_with_and_without_a_gpu_have_one_state(method: str, tmp_path: Path) -> None:
    is_per_step = method.startswith(("allreduce", "flexdemo"))
    rounds = 5 * ROUNDS if is_per_step else ROUNDS
    config = write_config(tmp_path, peers=len(DEVICES), rounds=rounds, method=METHODS[method])
    run_dir = tmp_path / "run"

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(180):
            await start_all(cluster, config)
            return [await node.child.wait() for node in cluster.nodes]

    assert asyncio.run(play()) == [0] * len(DEVICES)
    assert marked_processes() == {}
    check_one_state(run_dir)
    assert len({event.state_digest for event in of(Finished, run_dir)}) == 1
    # A GPU's first step may take longer than the others wait.
    assert len(of(Commit, run_dir)[-1].roster) == len(DEVICES)
    losses = [event.loss for event in of(Evaluated, run_dir)]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)
    assert min(losses) < UNTRAINED_LOSS - 0.5


@pytest.mark.deadline(200)
def test_a_killed_rank_goes_on_with_its_optimizer_on_the_gpu(tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=len(DEVICES), rounds=4 * ROUNDS, method="inner_steps = 5")
    run_dir = tmp_path / "run"

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(180):
            await start_all(cluster, config)
            alpha = cluster.nodes[0]
            await asyncio.to_thread(commits_until, alpha.directory, ROUNDS, within_s=120)
            for pid in descendants(alpha.child.pid):
                os.kill(pid, signal.SIGKILL)
            return [await node.child.wait() for node in cluster.nodes]

    assert asyncio.run(play()) == [0] * len(DEVICES)
    assert marked_processes() == {}
    assert of(RanksLost, run_dir / "alpha")
    check_one_state(run_dir)
    assert max(commits(run_dir / "alpha")) == 4 * ROUNDS
