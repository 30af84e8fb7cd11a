"""All-reduce with real models: one state on all nodes, whoever comes and goes."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, Lost, View
from sims.cluster.local_cluster import LocalCluster, LocalNode
from tests.cluster.running import commits_until, marked_processes, of, until, write_config

METHOD = """name = "allreduce"
commit_every_steps = 4
snapshot_every_steps = 8"""


@pytest.mark.long
@pytest.mark.deadline(240)
def test_nodes_have_one_model_through_a_loss_and_a_join(tmp_path: Path) -> None:
    """One of them with two ranks (FSDP2), whose shards lie elsewhere."""
    config = write_config(tmp_path, peers=3, rounds=1_000_000, method=METHOD)
    run_dir = tmp_path / "run"

    def joined() -> bool:
        views = of(View, run_dir / "alpha")
        return any(peer.startswith("delta.") for peer in views[-1].roster)

    async def play() -> None:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(220):
            nodes: dict[str, LocalNode] = {}
            token = ""
            for name, ranks in (("alpha", 1), ("beta", 2), ("gamma", 1)):
                sets = [f"node.ranks={ranks}"]
                nodes[name] = cluster.start_peer(name, config, join=token, overrides=sets)
                token = token or await cluster.token_of(nodes["alpha"])
            await asyncio.to_thread(commits_until, run_dir / "gamma", 12, within_s=120)
            os.kill(nodes["gamma"].child.pid, signal.SIGKILL)
            await asyncio.to_thread(
                until, lambda: of(Lost, run_dir / "alpha"), within_s=30, what="gamma missed"
            )
            cluster.start_peer("delta", config, join=token)
            await asyncio.to_thread(until, joined, within_s=90, what="delta in the roster")
            reached = of(Commit, run_dir / "alpha")[-1].round
            for name in ("beta", "delta"):
                await asyncio.to_thread(commits_until, run_dir / name, reached + 12, within_s=60)

    asyncio.run(play())
    assert marked_processes() == {}
    by_step: dict[int, set[str]] = {}
    for commit in of(Commit, run_dir):
        by_step.setdefault(commit.round, set()).add(commit.state_digest)
    assert {len(digests) for digests in by_step.values()} == {1}
    assert len({digest for digests in by_step.values() for digest in digests}) == len(by_step)
    ours = {commit.round for commit in of(Commit, run_dir / "delta") if commit.counted}
    assert len(ours) >= 3
