"""Stepwise runs as real processes: the bits of a plain loop, whoever comes, goes and crashes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_cut
from lowcomm.config.schema import load_config
from lowcomm.numerics import operations
from lowcomm.numerics.operations import F32
from lowcomm.reports.events import Commit, Evaluated, Finished, RanksLost, Samples, Start, View
from sims.cluster.local_cluster import LocalCluster
from sims.cluster.process_tree import descendants
from sims.paced.moves import initial_parameters, movement, stand_in_loss
from sims.paced.rank import RankSpeed
from sims.paced.step_nodes import apply_step
from tests.cluster.one_by_one import SLOTS, one_by_one, roster_of
from tests.cluster.running import (
    commits_until,
    marked_processes,
    new_shell,
    of,
    until,
    write_config,
)

METHOD = """name = "allreduce"
commit_every_steps = 8
snapshot_every_steps = 16"""


@pytest.mark.long
@pytest.mark.deadline(120)
def test_steps_go_on_with_the_same_bits_through_losses_and_a_join(tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=3, rounds=1_000_000, method=METHOD)
    run_dir = tmp_path / "run"
    pace = RankSpeed(step_s=0.01, elements=4096)

    def in_view(name: str, *, within_s: float = 40) -> None:
        def look() -> bool:
            views = of(View, run_dir / "alpha")
            return bool(views) and name in [peer.rpartition(".")[0] for peer in views[-1].roster]

        until(look, within_s=within_s, what=f"{name} in the roster")

    async def play() -> None:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(110):
            nodes = await one_by_one(cluster, ("alpha", "beta", "gamma"), config, pace=pace)
            await asyncio.to_thread(commits_until, run_dir / "beta", 40)
            os.kill(nodes["gamma"].child.pid, signal.SIGKILL)
            reached = of(Commit, run_dir / "alpha")[-1].round
            await asyncio.to_thread(commits_until, run_dir / "beta", reached + 24)
            for rank in descendants(nodes["beta"].child.pid):
                os.kill(rank, signal.SIGKILL)
            await asyncio.to_thread(
                until, lambda: of(RanksLost, run_dir / "beta"), within_s=20, what="ranks lost"
            )
            await one_by_one(cluster, ("delta",), config, pace=pace, first=nodes["alpha"])
            await asyncio.to_thread(in_view, "delta")
            await asyncio.to_thread(in_view, "beta")
            reached = of(Commit, run_dir / "alpha")[-1].round
            for name in ("beta", "delta"):
                await asyncio.to_thread(commits_until, run_dir / name, reached + 24)

    asyncio.run(play())
    assert marked_processes() == {}
    run = load_config(config).run
    assert run is not None
    committed = of(Commit, run_dir / "alpha")
    expected = digests(run_dir / "alpha", committed[-1].round, 4096, run.seed)
    assert len(committed) > 10
    for commit in of(Commit, run_dir):
        assert expected.get(commit.round) in (commit.state_digest, None), commit
    rosters = {len(commit.roster) for commit in committed}
    assert rosters >= {2, 3}


@pytest.mark.deadline(90)
def test_large_payloads_end_with_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    """Larger than a chunk, and than what the loop's thread does by itself; two ranks a node."""
    steps, elements = 40, (1 << 18) + 1000
    config, run_dir = write_config(tmp_path, peers=2, rounds=steps, method=METHOD), tmp_path / "run"

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(80):
            nodes = await one_by_one(
                cluster,
                ("alpha", "beta"),
                config,
                pace=RankSpeed(step_s=0, elements=elements),
                overrides=("node.ranks=2",),
            )
            return [await node.child.wait() for node in nodes.values()]

    assert asyncio.run(play()) == [0, 0]
    assert marked_processes() == {}
    run = load_config(config).run
    assert run is not None
    expected = digests(run_dir / "alpha", steps, elements, run.seed)
    for commit in of(Commit, run_dir):
        assert expected[commit.round] == commit.state_digest, commit
    assert [event.state_digest for event in of(Finished, run_dir)] == [expected[steps]] * 2
    (evaluated,) = of(Evaluated, run_dir)
    *_, (_, last_3P) = states(run_dir / "alpha", steps, elements, run.seed)
    assert evaluated.loss == stand_in_loss(last_3P[0])


@pytest.mark.long
@pytest.mark.deadline(120)
def test_a_run_whose_nodes_all_died_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """I6; and every batch that is committed is committed once (I10)."""
    steps, elements = 240, 4096
    config, run_dir = write_config(tmp_path, peers=2, rounds=steps, method=METHOD), tmp_path / "run"
    names = ("alpha", "beta")

    async def play() -> None:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(50):
            nodes = await one_by_one(
                cluster,
                names,
                config,
                pace=RankSpeed(step_s=0.02, elements=elements),
                overrides=("node.checkpoint_every_rounds=2",),
            )
            await asyncio.to_thread(commits_until, run_dir / "beta", 80)
            for node in nodes.values():
                os.kill(node.child.pid, signal.SIGKILL)
            for node in nodes.values():
                await node.child.wait()

    asyncio.run(play())
    reached = max(commit.round for commit in of(Commit, run_dir))
    paths = [newest_checkpoint(run_dir / name / "checkpoints")[0] for name in names]
    kept = max(read_cut(path).round for path in paths if path is not None)
    assert 32 <= kept <= reached < steps
    with new_shell(tmp_path) as shell:
        again = shell.run("resume", str(run_dir), within_s=60)
        assert again.popen.returncode == 0, again.err
    assert marked_processes() == {}
    run = load_config(config).run
    assert run is not None
    expected = digests(run_dir / "alpha", steps, elements, run.seed)
    assert [event.state_digest for event in of(Finished, run_dir)] == [expected[steps]] * 2
    assert min(commit.round for commit in after_the_last_start(run_dir / "alpha")) == kept + 8
    views = of(View, run_dir / "alpha")
    made_of = sum(len(roster_of(views, step)) for step in range(1, steps + 1))
    assert max(event.committed for event in of(Samples, run_dir)) == run.data.batch * made_of


@pytest.mark.long
@pytest.mark.deadline(90)
def test_the_command_measures_steps_beside_gloo() -> None:
    argv = [sys.executable, "-m", "benchmarks", "steps", "--steps", "100", "--turns", "1", "--json"]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=80)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert list(results) == ["lowcomm", "gloo all_reduce", "gloo all_gather"]
    for figures in results.values():
        assert figures["steps"] == 200, "100 of each of the two peers"
        assert 0 < figures["p10_ms"] <= figures["p50_ms"] <= figures["p99_ms"]
    assert marked_processes() == {}


def after_the_last_start(directory: Path) -> list[Commit]:
    """What its present life committed."""
    begun = of(Start, directory)[-1].t
    return [commit for commit in of(Commit, directory) if commit.t >= begun]


def states(directory: Path, steps: int, elements: int, seed: int) -> Iterator[tuple[int, F32]]:
    """(step, the state after it), by one plain loop over the rosters of a node's log."""
    views = of(View, directory)
    state_3P = np.zeros((3, elements), np.float32)
    state_3P[0] = initial_parameters(elements, seed=seed)
    mean_P = np.empty(elements, np.float32)
    for step in range(1, steps + 1):
        roster = roster_of(views, step)
        slots = [SLOTS[peer.rpartition(".")[0]] for peer in sorted(roster)]
        moves = [movement(elements, slot=slot, step=step) for slot in slots]
        operations.weighted_mean(moves, [1] * len(moves), mean_P)
        apply_step(state_3P, mean_P, step)
        yield step, state_3P


def digests(directory: Path, steps: int, elements: int, seed: int) -> dict[int, str]:
    """By step: of the state after it."""
    made = states(directory, steps, elements, seed)
    return {step: xxhash.xxh3_128_hexdigest(state_3P.tobytes()) for step, state_3P in made}
