"""Rounds of one time for all nodes, over real daemons."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, RanksLost, Ready
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.paced.cluster import start_all, start_paced
from sims.paced.rank import RankSpeed
from tests.cluster.method_runs import ELEMENTS, NAMES, PACE, check_by_lockstep, ranks_of
from tests.cluster.running import (
    commits,
    commits_until,
    marked_processes,
    of,
    until,
    write_config,
)


@pytest.mark.long
@pytest.mark.deadline(90)
def test_in_one_time_each_node_makes_the_steps_that_it_can(tmp_path: Path) -> None:
    """And both ranks of a node the same ones."""
    method = "inner_steps = 400\nround_s = 0.4"
    config = write_config(tmp_path, peers=len(NAMES), rounds=8, method=method)
    run_dir = tmp_path / "run"
    steps_s = (0.005, 0.01, 0.04)

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(80):
            paces = [RankSpeed(step_s=step_s, elements=ELEMENTS) for step_s in steps_s]
            two = ["node.ranks=2"]
            nodes = await start_all(cluster, NAMES, config, pace=paces, overrides=two)
            return [await node.child.wait() for node in nodes]

    assert asyncio.run(play()) == [0, 0, 0]
    assert marked_processes() == {}
    check_by_lockstep(config, run_dir)
    made = [sum(ready.steps for ready in of(Ready, run_dir / name)) for name in NAMES]
    assert made[0] > made[1] > made[2]
    assert max(ready.steps for ready in of(Ready, run_dir)) < 400


@pytest.mark.long
@pytest.mark.deadline(90)
def test_who_joins_a_run_of_timed_rounds_is_soon_counted_as_are_ranks_that_come_back(
    tmp_path: Path,
) -> None:
    method = "inner_steps = 1000\nround_s = 0.3"
    config = write_config(tmp_path, peers=2, rounds=100_000, method=method)
    run_dir = tmp_path / "run"
    alpha, beta, gamma = (run_dir / name for name in NAMES)

    def counted(node: Path, *, after: int) -> bool:
        """In three rounds."""
        return sum(x.counted and x.round > after for x in of(Commit, node)) >= 3

    def play_faults(victim: LocalNode) -> None:
        commits_until(gamma, 3)
        until(lambda: counted(gamma, after=0), within_s=20, what="gamma counted")
        ranks = ranks_of(victim)
        os.kill(max(ranks), signal.SIGKILL)
        until(lambda: of(RanksLost, beta), within_s=20, what="beta missing its ranks")
        last = commits(alpha)[-1]
        until(lambda: counted(beta, after=last + 1), within_s=30, what="beta counted again")

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(80):
            paces = [RankSpeed(step_s=step_s, elements=ELEMENTS) for step_s in (0.005, 0.02)]
            first, second = await start_all(cluster, NAMES[:2], config, pace=paces)
            commits_until(beta, 3)
            invited = cluster.invite(first)
            two = ["node.ranks=2"]
            third = start_paced(cluster, "gamma", config, pace=PACE, join=invited, overrides=two)
            await asyncio.to_thread(play_faults, second)
            codes: list[int] = []
            for node in (third, second, first):
                os.kill(node.child.pid, signal.SIGTERM)
                codes.append(await node.child.wait())
            return codes

    assert asyncio.run(play()) == [143, 143, 143]
    assert marked_processes() == {}
    found: dict[int, set[str]] = {}
    for commit in of(Commit, run_dir):
        found.setdefault(commit.round, set()).add(commit.state_digest)
    assert all(len(digests) == 1 for digests in found.values())
