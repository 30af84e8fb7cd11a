"""Losses, joins and restarts in runs by methods of fragments and of pairs, over real daemons."""

import asyncio
import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, Evaluated, Finished, RanksLost, SnapshotReceived
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.paced.cluster import start_all, start_paced
from tests.cluster.method_runs import METHODS, NAMES, NOLOCO, PACE, check_one_state, ranks_of
from tests.cluster.running import (
    commits,
    commits_until,
    marked_processes,
    new_shell,
    of,
    until,
    write_config,
)


@pytest.mark.long
@pytest.mark.deadline(120)
def test_pairs_go_on_when_one_dies_and_take_in_who_comes_or_comes_back(tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=3, rounds=100_000, method=NOLOCO)
    run_dir = tmp_path / "run"
    alpha, beta, gamma, delta = (run_dir / name for name in (*NAMES, "delta"))

    def counted(node: Path, *, after: int = 0) -> bool:
        return any(x.counted and x.round > after for x in of(Commit, node))

    def crash(victim: LocalNode) -> None:
        """Its ranks alone, and then all of another node."""
        commits_until(alpha, 3)
        (rank,) = ranks_of(victim)
        os.kill(rank, signal.SIGKILL)
        until(lambda: of(RanksLost, beta), within_s=20, what="beta missing its ranks")
        last = commits(alpha)[-1]
        until(lambda: counted(beta, after=last + 1), within_s=30, what="beta counted again")

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(110):
            nodes = await start_all(cluster, NAMES, config, pace=PACE)
            await asyncio.to_thread(crash, nodes[1])
            invited = cluster.invite(nodes[0])
            os.kill(nodes[2].child.pid, signal.SIGKILL)
            await nodes[2].child.wait()
            last = commits(alpha)[-1]
            await asyncio.to_thread(commits_until, alpha, last + 3)
            nodes.append(start_paced(cluster, "delta", config, pace=PACE, join=invited))
            nodes[2] = cluster.start_node("gamma", ["resume", str(gamma), "--join", invited])
            for node, after in ((delta, 0), (gamma, last + 3)):
                back = partial(counted, node, after=after)
                await asyncio.to_thread(until, back, within_s=30, what=f"{node.name} counted")
            codes: list[int] = []
            for node in reversed(nodes):
                os.kill(node.child.pid, signal.SIGTERM)
                codes.append(await node.child.wait())
            return codes

    assert asyncio.run(play()) == [143, 143, 143, 143]
    assert marked_processes() == {}
    for node, lives in ((delta, 1), (gamma, 2)):
        donors = [event.donors for event in of(SnapshotReceived, node)]
        assert list(map(len, donors)) == [1] * lives, "no two have the same state"


@pytest.mark.long
@pytest.mark.deadline(120)
def test_fragments_outlive_a_crash_of_ranks_and_a_joiner_falls_in(tmp_path: Path) -> None:
    text = METHODS["streaming"] + '\ncontribution_codec = "topk"'
    config = write_config(tmp_path, peers=2, rounds=100_000, method=text)
    run_dir = tmp_path / "run"
    alpha, beta, gamma = (run_dir / name for name in NAMES)

    def counted(node: Path, *, after: int) -> bool:
        """In a round of every fragment, later than this one."""
        commits = [x for x in of(Commit, node) if x.counted and x.round > after]
        return len({commit.fragment for commit in commits}) == 4

    def crash(victim: LocalNode) -> None:
        """One of two ranks, which costs both; and their daemon goes on."""
        commits_until(beta, 3)
        ranks = ranks_of(victim)
        os.kill(max(ranks), signal.SIGKILL)
        until(lambda: of(RanksLost, beta), within_s=20, what="beta missing its ranks")
        last = commits(alpha)[-1]
        until(lambda: counted(beta, after=last + 1), within_s=40, what="beta counted again")

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(110):
            (first,) = await start_all(cluster, NAMES[:1], config, pace=PACE)
            invited = cluster.invite(first)
            two = ["node.ranks=2"]
            second = start_paced(cluster, "beta", config, pace=PACE, join=invited, overrides=two)
            await asyncio.to_thread(crash, second)
            third = start_paced(cluster, "gamma", config, pace=PACE, join=cluster.invite(first))
            await asyncio.to_thread(
                until, lambda: counted(gamma, after=0), within_s=40, what="gamma counted"
            )
            codes: list[int] = []
            for node in (third, second, first):
                os.kill(node.child.pid, signal.SIGTERM)
                codes.append(await node.child.wait())
            return codes

    assert asyncio.run(play()) == [143, 143, 143]
    assert marked_processes() == {}
    check_one_state(run_dir)
    # Nobody waits for somebody who waits for a later fragment.
    rounds = [commit.round for commit in of(Commit, alpha)]
    assert all(later >= earlier - 1 for earlier, later in pairwise(rounds))


@pytest.mark.deadline(120)
@pytest.mark.long
@pytest.mark.parametrize("method", ["streaming-in-flight", "decoupled-in-flight"])
def test_a_killed_peer_comes_back_among_several_fragments_in_flight(
    method: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path, peers=3, rounds=100_000, method=METHODS[method])
    run_dir = tmp_path / "run"
    alpha, gamma = run_dir / "alpha", run_dir / "gamma"
    two = ["node.ranks=2"]  # Which give the same answers at every boundary.

    def counted(*, after: int) -> bool:
        """Gamma, in a round of every fragment, later than this one."""
        commits = [x for x in of(Commit, gamma) if x.counted and x.round > after]
        return len({commit.fragment for commit in commits}) == 4

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(110):
            nodes = await start_all(cluster, NAMES, config, pace=PACE, overrides=two)
            await asyncio.to_thread(commits_until, gamma, 5)
            os.kill(nodes[2].child.pid, signal.SIGKILL)
            await nodes[2].child.wait()
            await asyncio.to_thread(commits_until, alpha, commits(alpha)[-1] + 5)
            last = commits(alpha)[-1]
            token = cluster.invite(nodes[0])
            nodes[2] = start_paced(cluster, "gamma", config, pace=PACE, join=token, overrides=two)
            await asyncio.to_thread(
                until, lambda: counted(after=last), within_s=40, what="gamma counted again"
            )
            for node in reversed(nodes):
                os.kill(node.child.pid, signal.SIGTERM)
            return [await node.child.wait() for node in nodes]

    assert asyncio.run(play()) == [143, 143, 143]
    assert marked_processes() == {}
    check_one_state(run_dir)
    assert {len(commit.roster) for commit in of(Commit, alpha)} >= {2, 3}


@pytest.mark.long
@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    ("method", "codec", "fragments"),
    [
        ("streaming_diloco", "fp4", 3),
        pytest.param("eager_diloco", "fp4", 1, marks=pytest.mark.nightly),
        pytest.param("noloco", "bf16", 1, marks=pytest.mark.nightly),
    ],
)
def test_a_stopped_run_of_sharded_nodes_goes_on_with_all_fragments(
    method: str, codec: str, fragments: int, tmp_path: Path
) -> None:
    text = f'name = "{method}"\ninner_steps = 6\ncontribution_codec = "{codec}"'
    config = write_config(tmp_path, peers=2, rounds=16, method=text)
    run_dir = tmp_path / "runs" / "tiny"
    with new_shell(tmp_path) as shell:
        launcher = shell.start("sim", str(config), "--peers", "2", "--ranks", "2,1")
        commits_until(run_dir / "beta", 11, within_s=60)  # A checkpoint, and more.
        launcher.signal(signal.SIGINT)
        assert launcher.wait(within_s=10) == 130, launcher.err
        again = shell.run("resume", str(run_dir), within_s=60)
        assert again.popen.returncode == 0, again.err
    assert marked_processes() == {}
    digests: dict[tuple[int, int], set[str]] = {}
    for commit in of(Commit, run_dir):
        digests.setdefault((commit.fragment, commit.round), set()).add(commit.state_digest)
    lasts = [digests[fragment, 16] for fragment in range(fragments)]
    assert all(len(found) == 1 for found in lasts)
    assert {x.state_digest for x in of(Finished, run_dir)} == lasts[0]
    (evaluated,) = of(Evaluated, run_dir)
    assert evaluated.loss < 4, "bytes of a text: 5.5 at first"
