"""FlexDeMo with real models: one state on nodes of one and of two ranks, and it learns."""

import asyncio
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, Evaluated, Finished
from sims.cluster.local_cluster import LocalCluster, LocalNode
from tests.cluster.running import marked_processes, of, write_config

STEPS = 60
RANKS = {"alpha": 1, "beta": 2}
UNTRAINED_LOSS = 5.5
"""The logarithm of 256 bytes."""


@pytest.mark.deadline(150)
@pytest.mark.long
@pytest.mark.parametrize("step", ["adamw", pytest.param("sgd", marks=pytest.mark.nightly)])
def test_nodes_have_one_model_and_it_learns(tmp_path: Path, step: str) -> None:
    """FSDP2 cuts the tensors of one of them where no tile ends."""
    method = f'name = "flexdemo"\nstep = "{step}"\ncommit_every_steps = 4\nsnapshot_every_steps = 8'
    config = write_config(tmp_path, peers=2, rounds=STEPS, method=method)
    run_dir = tmp_path / "run"

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(130):

            def start(name: str, token: str) -> LocalNode:
                sets = [f"node.ranks={RANKS[name]}", "run.optimizer.lr=0.003"]
                sets.append("node.checkpoint_every_rounds=2")
                return cluster.start_peer(name, config, join=token, overrides=sets)

            nodes = await cluster.start_all(list(RANKS), start)
            return [await node.child.wait() for node in nodes]

    assert asyncio.run(play()) == [0, 0]
    assert marked_processes() == {}
    by_step: dict[int, set[str]] = {}
    for commit in of(Commit, run_dir):
        by_step.setdefault(commit.round, set()).add(commit.state_digest)
    assert {len(digests) for digests in by_step.values()} == {1}
    assert len({event.state_digest for event in of(Finished, run_dir)}) == 1
    for rank_file in ("alpha/%s/rank-0-of-1", "beta/%s/rank-0-of-2", "beta/%s/rank-1-of-2"):
        kept = run_dir / f"{rank_file % 'rank-state/round-000048'}.safetensors"
        assert kept.exists(), "its momentum, for a restart"
    (evaluated,) = of(Evaluated, run_dir)
    assert evaluated.loss < UNTRAINED_LOSS / 2
