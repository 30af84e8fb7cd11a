"""Paced peers as real processes: rounds, bits that a test can work out, and nothing left behind."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from lowcomm.config.schema import RunConfig, load_config
from lowcomm.methods import DiLoCoMethod
from lowcomm.numerics import operations, state_digests
from lowcomm.reports.events import Attempt, Commit, Evaluated, Finished, Lost, Note, Ready
from protocols.types.ids import TensorSpec
from sims.cluster.local_cluster import LOG, LocalCluster, LocalNode
from sims.cluster.process_tree import descendants
from sims.lockstep.exchange import LocalContribution, Lockstep
from sims.paced.cluster import start_all, start_paced
from sims.paced.moves import FRAGMENT, initial_parameters, movement, stand_in_loss
from sims.paced.rank import RankSpeed
from tests.cluster.running import (
    alive,
    commits,
    commits_until,
    marked_processes,
    of,
    until,
    write_config,
)

NAMES = ("alpha", "beta", "gamma")
ROUNDS = 10
WALL_S = 20.0


@pytest.mark.deadline(45)
def test_three_peers_finish_with_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    config, run_dir = write_config(tmp_path, peers=len(NAMES), rounds=ROUNDS), tmp_path / "run"
    began = time.monotonic()

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(2 * WALL_S):
            return await ends(await start_all(cluster, NAMES, config))

    assert asyncio.run(play()) == [0, 0, 0]
    assert time.monotonic() - began < WALL_S
    assert marked_processes() == {}
    for name in NAMES:
        assert commits(run_dir / name) == list(range(1, ROUNDS + 1))
    by_round: dict[int, set[str]] = {}
    for commit in of(Commit, run_dir):
        by_round.setdefault(commit.round, set()).add(commit.state_digest)
    run = load_config(config).run
    assert run is not None
    digests, loss, together = replay(run, run_dir)
    assert together == digests, "nodes in lockstep make the same of the same work"
    assert by_round == {round_: {digest} for round_, digest in enumerate(digests, 1)}
    assert [event.state_digest for event in of(Finished, run_dir)] == [digests[-1]] * len(NAMES)
    assert [event.loss for event in of(Evaluated, run_dir)] == [loss]


def files_without_names(pid: int, directory: Path) -> int:
    """Those of a process that once were in this directory."""
    links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    return sum(link.startswith(f"{directory}/") and link.endswith(" (deleted)") for link in links)


@pytest.mark.deadline(60)
def test_a_node_with_its_outer_state_in_files_has_the_digests_of_one_without(
    tmp_path: Path,
) -> None:
    config, run_dir = write_config(tmp_path, peers=2, rounds=100_000), tmp_path / "run"
    pace = RankSpeed(step_s=0.01, elements=4096)
    alpha, beta = run_dir / "alpha", run_dir / "beta"

    def watch(nodes: Sequence[LocalNode]) -> None:
        commits_until(beta, 5)
        held = [files_without_names(node.child.pid, node.directory) for node in nodes]
        assert held[0] == 0
        assert held[1] >= 2, "shared memory and momentum"
        for node in nodes:
            os.kill(node.child.pid, signal.SIGTERM)

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(50):

            def start(name: str, token: str) -> LocalNode:
                own = ["node.outer_state=file"] if name == "beta" else []
                return start_paced(cluster, name, config, pace=pace, join=token, overrides=own)

            nodes = await cluster.start_all(["alpha", "beta"], start)
            await asyncio.to_thread(watch, nodes)
            return await ends(nodes)

    assert asyncio.run(play()) == [143, 143]
    digests: dict[int, set[str]] = {}
    for commit in (*of(Commit, alpha), *of(Commit, beta)):
        digests.setdefault(commit.round, set()).add(commit.state_digest)
    assert {round_: len(found) for round_, found in digests.items() if len(found) > 1} == {}
    assert len(set(commits(alpha)) & set(commits(beta))) >= 5
    assert marked_processes() == {}


@pytest.mark.deadline(60)
def test_ranks_end_with_their_lifeline_and_other_users_read_no_token(tmp_path: Path) -> None:
    config, run_dir = write_config(tmp_path, peers=2, rounds=100_000), tmp_path / "run"
    alpha, beta = run_dir / "alpha", run_dir / "beta"
    pace = RankSpeed(step_s=0.01, elements=4096)

    def watch(victim: LocalNode, token: str) -> None:
        commits_until(beta, 3)
        no_other_user_reads(run_dir, token)
        processes = marked_processes()
        mapped = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in processes}
        assert len(mapped) >= 8  # Two daemons and reapers, three ranks, what forked two of them.
        assert [processes[pid] for pid, text in mapped.items() if "libtorch" in text] == []
        ranks = descendants(victim.child.pid)
        assert len(ranks) == 4
        os.kill(victim.child.pid, signal.SIGKILL)
        until(lambda: not alive(ranks), within_s=5, what="the ranks gone")
        for rank in range(2):  # The reaper gives them the time to say so.
            assert f"rank {rank}: the daemon is gone" in (beta / LOG).read_text(encoding="utf-8")
        until(lambda: of(Lost, alpha), within_s=5, what="alpha missing beta")
        commits_until(alpha, commits(alpha)[-1] + 3)

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(50):
            (first,) = await start_all(cluster, ["alpha"], config, pace=pace)
            token, ranks = cluster.invite(first), ["node.ranks=2"]
            victim = start_paced(cluster, "beta", config, pace=pace, join=token, overrides=ranks)
            await asyncio.to_thread(watch, victim, token)
            os.kill(first.child.pid, signal.SIGTERM)
            return await ends([first, victim])

    assert asyncio.run(play()) == [143, -signal.SIGKILL]
    assert marked_processes() == {}


def no_other_user_reads(run_dir: Path, token: str) -> None:
    """Every user can read arguments, an environment only its owner; but the environment of
    ranks goes to all that they start."""
    processes = marked_processes()
    assert [line for line in processes.values() if "lc2-" in line] == []
    environments = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in processes}
    holders = {pid for pid, text in environments.items() if token.encode() in text}
    daemons = {pid for pid, line in processes.items() if "lowcomm.cli.main" in line}
    assert len(holders) == 1
    assert holders <= daemons
    for path in (run_dir, *run_dir.rglob("*")):
        if path.is_file() and path.stat().st_mode & 0o077:
            assert b"lc2-" not in path.read_bytes(), path
    closed = [run_dir, *run_dir.glob("*/"), *run_dir.glob(f"*/{LOG}"), *run_dir.glob("*/events*")]
    assert [path for path in closed if path.stat().st_mode & 0o077] == []


@pytest.mark.long
@pytest.mark.deadline(45)
def test_an_owner_that_lies_changes_no_bit_and_is_named(tmp_path: Path) -> None:
    """alpha owns the only part, and leads. It falsifies the result of one round."""
    config, run_dir = write_config(tmp_path, peers=len(NAMES), rounds=ROUNDS), tmp_path / "run"

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(2 * WALL_S):
            first = start_paced(cluster, NAMES[0], config, fault="lie@round=4,percent=100")
            token = await cluster.token_of(first)
            others = [start_paced(cluster, name, config, join=token) for name in NAMES[1:]]
            return await ends([first, *others])

    assert asyncio.run(play()) == [0, 0, 0]
    run = load_config(config).run
    assert run is not None
    digests, _, _ = replay(run, run_dir)
    for name in NAMES:
        assert [commit.state_digest for commit in of(Commit, run_dir / name)] == digests
        told = {attempt.round: attempt.why for attempt in of(Attempt, run_dir / name)}
        assert list(told) == [4]
        assert "wrong result" in told[4]
        assert "alpha is the reason" in told[4]
    notes = [note for name in NAMES[1:] for note in of(Note, run_dir / name)]
    assert any(note.topic == "owner" and "alpha" in note.text for note in notes)


async def ends(nodes: Sequence[LocalNode]) -> list[int]:
    """The exit codes, when all have ended."""
    return [await node.child.wait() for node in nodes]


def replay(run: RunConfig, run_dir: Path) -> tuple[list[str], float, list[str]]:
    """The state digest after each round and the last parameters' loss, by one plain loop; and the
    digests once more, by nodes in lockstep.

    From the files it takes who has which slot and how many steps each one made in each round.
    """
    slots: dict[str, int] = {}
    for name in NAMES:
        path, _ = newest_checkpoint(run_dir / name / "checkpoints")
        assert path is not None
        own = read_checkpoint(path)[0].own
        slots[own.peer] = own.data_slot
    assert sorted(slots.values()) == [0, 1, 2]
    steps = {(event.peer, event.round): event.steps for event in of(Ready, run_dir)}
    data_steps = dict.fromkeys(slots, 0)
    theta_P = initial_parameters(1 << 16, seed=run.seed)
    momentum_P, mean_P = np.zeros_like(theta_P), np.zeros_like(theta_P)
    digests, again = list[str](), list[str]()
    layout = [TensorSpec(FRAGMENT, "paced", theta_P.shape, 0)]
    method = run.method
    assert isinstance(method, DiLoCoMethod)
    lockstep = Lockstep(method, layout, nodes=len(NAMES))
    lockstep.begin(FRAGMENT, theta_P)
    for commit in of(Commit, run_dir / NAMES[0]):
        assert commit.roster == tuple(sorted(slots))  # All wait for all: 30 s, by default.
        gradients: list[operations.F32] = []
        given: dict[int, LocalContribution] = {}
        for node, peer in enumerate(commit.roster):
            local_P = theta_P.copy()
            for _ in range(steps[peer, commit.round]):
                local_P += movement(local_P.size, slot=slots[peer], step=data_steps[peer])
                data_steps[peer] += 1
            data_steps[peer] = max(data_steps[peer], commit.inner_step)
            gradients.append(theta_P - local_P)
            given[node] = LocalContribution(local_P, steps[peer, commit.round])
        weights = [steps[peer, commit.round] for peer in commit.roster]
        operations.weighted_mean(gradients, weights, mean_P)
        operations.nesterov_step(
            theta_P,
            mean_P,
            momentum_P,
            theta_P,
            momentum_P,
            lr=method.outer_lr,
            beta=method.outer_momentum,
        )
        digests.append(state_digests.state_digest(theta_P, momentum_P))
        again.append(lockstep.exchange_round(FRAGMENT, given)[1])
    lockstep.close()
    return digests, stand_in_loss(theta_P), again
