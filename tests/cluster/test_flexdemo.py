"""FlexDeMo and all-reduce under real daemons: the bits of the same steps in memory."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import xxhash

from lowcomm.config.schema import load_config
from lowcomm.methods import StepMethod
from lowcomm.reports.events import Commit, Finished, RanksLost, Traffic, View
from protocols.types.ids import TensorSpec
from sims.cluster.local_cluster import LocalCluster
from sims.cluster.process_tree import descendants
from sims.lockstep.step_lockstep import StepLockstep
from sims.paced.moves import tensors
from sims.paced.rank import RankSpeed
from sims.paced.step_nodes import paced_node
from tests.cluster.one_by_one import SLOTS, one_by_one, roster_of
from tests.cluster.running import (
    commits_until,
    marked_processes,
    of,
    until,
    write_config,
)
from tests.marks import LONG, NIGHTLY

STEPS = 40
KILLED_STEPS = 72
PACE = RankSpeed(step_s=0, elements=4 * 130 * 70, columns=70)
"""Matrices of 130 x 70 and vectors, which no chunk divides."""
NAMES = ("alpha", "beta", "gamma")
RHYTHM = "commit_every_steps = 8\nsnapshot_every_steps = 16"
METHODS = {
    "allreduce": 'name = "allreduce"',
    "demo": 'name = "flexdemo"',
    "demo-world": 'name = "flexdemo"\nmean = "world"\nsign = "none"\nvalues = "fp32"\nchunk = 16',
    "demo-sign": 'name = "flexdemo"\nvalues = "sign"',
    "random": 'name = "flexdemo"\nreplicator = "random"',
    "striding": 'name = "flexdemo"\nreplicator = "striding"\nvalues = "sign"\nsign = "before"',
    "full": 'name = "flexdemo"\nreplicator = "full"',
}
MARKS = {
    **dict.fromkeys(("allreduce", "full", "demo-world", "striding"), LONG),
    **dict.fromkeys(("demo-sign", "random"), NIGHTLY),
}
"""By method, all others being in each run."""
TABLES = [
    pytest.param(table, id=name, marks=MARKS.get(name, ())) for name, table in METHODS.items()
]


@pytest.mark.deadline(90)
@pytest.mark.parametrize("table", TABLES)
def test_real_daemons_make_the_bits_of_the_exchange_in_memory(tmp_path: Path, table: str) -> None:
    """Each node has two ranks, each of which writes a part of the payload."""
    config = write_config(tmp_path, peers=3, rounds=STEPS, method=f"{table}\n{RHYTHM}")
    run_dir = tmp_path / "run"

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(80):
            nodes = await one_by_one(cluster, NAMES, config, pace=PACE, overrides=("node.ranks=2",))
            return [await node.child.wait() for node in nodes.values()]

    assert asyncio.run(play()) == [0, 0, 0]
    assert marked_processes() == {}
    run = load_config(config).run
    assert run is not None
    assert isinstance(run.method, StepMethod)
    views = of(View, run_dir / "alpha")
    expected, payload_bytes = in_memory(run.method, views, seed=run.seed)
    commits = of(Commit, run_dir)
    assert {commit.round for commit in commits} == set(range(8, STEPS + 1, 8))
    for commit in commits:
        assert commit.state_digest == expected[commit.round], commit
    assert [event.state_digest for event in of(Finished, run_dir)] == [expected[STEPS]] * 3
    sent = [sum(of(Traffic, run_dir / name)[-1].payload_sent_bytes) for name in NAMES]
    assert sum(sent) == pytest.approx(payload_bytes * 2, rel=0.02)


@pytest.mark.long
@pytest.mark.deadline(120)
def test_nodes_stay_one_through_losses_and_a_join(tmp_path: Path) -> None:
    """New ranks and new nodes begin with no momentum: only what they say differs."""
    table = f'name = "flexdemo"\nsign = "none"\n{RHYTHM}'
    config = write_config(tmp_path, peers=3, rounds=1_000_000, method=table)
    run_dir = tmp_path / "run"
    pace = RankSpeed(step_s=0.01, elements=PACE.elements, columns=PACE.columns)

    def in_view(name: str) -> None:
        def look() -> bool:
            newest = of(View, run_dir / "alpha")[-1].roster
            return name in [peer.rpartition(".")[0] for peer in newest]

        until(look, within_s=40, what=f"{name} in the roster")

    async def play() -> None:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(110):
            nodes = await one_by_one(cluster, NAMES, config, pace=pace)
            await asyncio.to_thread(commits_until, run_dir / "beta", 24)
            os.kill(nodes["gamma"].child.pid, signal.SIGKILL)
            for rank in descendants(nodes["beta"].child.pid):
                os.kill(rank, signal.SIGKILL)
            await asyncio.to_thread(
                until, lambda: of(RanksLost, run_dir / "beta"), within_s=20, what="ranks lost"
            )
            await one_by_one(cluster, ("delta",), config, pace=pace, first=nodes["alpha"])
            for name in ("beta", "delta"):
                await asyncio.to_thread(in_view, name)
            reached = of(Commit, run_dir / "alpha")[-1].round
            for name in ("beta", "delta"):
                await asyncio.to_thread(commits_until, run_dir / name, reached + 24)

    asyncio.run(play())
    assert marked_processes() == {}
    by_step: dict[int, set[str]] = {}
    for commit in of(Commit, run_dir):
        by_step.setdefault(commit.round, set()).add(commit.state_digest)
    assert {len(digests) for digests in by_step.values()} == {1}
    assert len({digest for digests in by_step.values() for digest in digests}) == len(by_step)


@pytest.mark.long
@pytest.mark.deadline(90)
def test_a_run_that_was_killed_goes_on_with_the_momentum_of_its_checkpoint(tmp_path: Path) -> None:
    """The bits are those of a run that nobody killed. Two ranks, each of which keeps its own."""
    table = f'name = "flexdemo"\nsign = "none"\n{RHYTHM}'
    config = write_config(tmp_path, peers=1, rounds=KILLED_STEPS, method=table)
    run_dir, alpha = tmp_path / "run", tmp_path / "run" / "alpha"
    pace = RankSpeed(step_s=0.02, elements=PACE.elements, columns=PACE.columns)
    sets = ["node.ranks=2", "node.checkpoint_every_rounds=2"]

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(80):
            nodes = await one_by_one(cluster, NAMES[:1], config, pace=pace, overrides=sets)
            await asyncio.to_thread(commits_until, alpha, 40)
            os.kill(nodes["alpha"].child.pid, signal.SIGKILL)
            await nodes["alpha"].child.wait()
            again = cluster.start_node("alpha", ["resume", str(alpha)])
            return [await again.child.wait()]

    assert asyncio.run(play()) == [0]
    assert marked_processes() == {}
    run = load_config(config).run
    assert run is not None
    assert isinstance(run.method, StepMethod)
    views = of(View, alpha)
    assert views[-1].first_round == 33, "the step after the last checkpoint"
    expected, _ = in_memory(run.method, views[:1], steps=KILLED_STEPS, seed=run.seed)
    for commit in of(Commit, alpha):
        assert commit.state_digest == expected[commit.round], commit


def in_memory(
    method: StepMethod, views: Sequence[View], *, seed: int, steps: int = STEPS
) -> tuple[dict[int, str], int]:
    """The state's digest after each step, and the bytes of all payloads, each counted once."""
    places = tensors(PACE.elements, columns=PACE.columns)
    layout = [TensorSpec(place.fragment, place.name, place.shape, place.offset) for place in places]
    shapes = [place.shape for place in places]
    together = StepLockstep(method, layout, seed=seed)
    nodes = {name: paced_node(method, shapes, slot=SLOTS[name], seed=seed) for name in NAMES}
    digests: dict[int, str] = {}
    for step in range(1, steps + 1):
        names = [peer.rpartition(".")[0] for peer in sorted(roster_of(views, step))]
        mean_P = together.make_step([nodes[name].payload(step) for name in names])
        for name, node in nodes.items():
            node.apply(mean_P, step, counted=name in names)
        (state,) = {node.state_AP.tobytes() for node in nodes.values()}
        digests[step] = xxhash.xxh3_128_hexdigest(state)
    return digests, together.payload_bytes
