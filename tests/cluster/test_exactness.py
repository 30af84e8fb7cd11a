"""Real peers over TCP against the definition: the same bits, whatever the nodes look like.

Every peer is a process of its own, started as a user starts it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lowcomm.config.schema import load_config, run_to_json
from lowcomm.numerics.state_digests import state_digest
from lowcomm.reports.events import (
    Commit,
    Event,
    Finished,
    Listening,
    RanksLost,
    RanksReady,
    Ready,
    Start,
)
from lowcomm.reports.summary import build_summary
from lowcomm.reports.timeline import read_timeline
from sims.cluster.local_cluster import LOG, LocalCluster
from tests.cluster import exactness_ranks as odd
from tests.cluster.exactness_cluster import (
    CHECKPOINT_ROUNDS,
    TEXT,
    digests,
    inner_state,
    last_state,
    log_of,
    maps_torch,
    of,
    play,
    ranks_of,
    raw_events,
    seen,
    start_pair,
    start_recording,
    write_config,
)

HERE = Path(__file__).parent


# A trajectory ---------------------------------------------------------------------------------


@pytest.mark.deadline(100)
def test_two_peers_over_tcp_are_bit_equal_to_one_plain_loop(tmp_path: Path) -> None:
    rounds, inner = 5, 4
    config = write_config(tmp_path, peers=2, rounds=rounds, inner=inner)
    run_dir = play(tmp_path, lambda cluster: start_pair(cluster, config), timeout_s=60)
    events = read_timeline(run_dir).events
    all_trained_in_step(events, ("alpha", "beta"), rounds=rounds, inner=inner)

    wanted = run_reference(config, corpus=run_dir / "alpha" / "corpus")
    expected = [
        state_digest(outer, momentum)
        for outer, momentum in zip(wanted["outer"], wanted["momentum"], strict=True)
    ]
    for name in ("alpha", "beta"):
        assert digests(events, name) == expected
        outer, momentum = last_state(run_dir, name, rounds=rounds)
        assert outer.tobytes() == wanted["outer"][-1].tobytes()
        assert momentum.tobytes() == wanted["momentum"][-1].tobytes()
        # torch's own outer optimizer on the same averaged pseudo-gradients.
        assert np.abs(outer - wanted["sgd"][-1]).max() <= 1e-6
        assert np.abs(momentum - wanted["sgd_momentum"][-1]).max() <= 1e-6
    for slot, name in enumerate(("alpha", "beta")):
        # A round adds up both nodes' work. What is each one's own is in its inner optimizer.
        adam = inner_state(run_dir, name, round_=CHECKPOINT_ROUNDS)
        assert adam.tobytes() == wanted["adam"][CHECKPOINT_ROUNDS - 1][slot].tobytes()
    moved = np.abs(wanted["outer"][-1] - wanted["outer"][0]).max()
    assert moved > 1e-2, "a run that goes nowhere proves nothing"


def all_trained_in_step(
    events: Sequence[Event], names: Sequence[str], *, rounds: int, inner: int
) -> None:
    """Each round counts all, each of them with all its inner steps: else there is no reference."""
    for name in names:
        ready = of(Ready, events, name)
        assert [(each.round, each.steps) for each in ready] == [
            (round_, inner) for round_ in range(1, rounds + 1)
        ]
        assert [len(commit.roster) for commit in of(Commit, events, name)] == [len(names)] * rounds


def run_reference(config: Path, *, corpus: Path) -> dict[str, NDArray[np.float32]]:
    """exactness_reference.py in its own process, on one thread."""
    run = load_config(config).run
    assert run is not None
    agreed, out = config.with_name("agreed.json"), config.with_name("reference.npz")
    agreed.write_text(run_to_json(run), encoding="utf-8")
    script = HERE / "exactness_reference.py"
    subprocess.run(
        [sys.executable, script, agreed, corpus, out],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=60,
    )
    with np.load(out) as arrays:
        return dict(arrays)


# Nodes of any size ----------------------------------------------------------------------------


@pytest.mark.deadline(120)
@pytest.mark.long
@pytest.mark.alone
def test_nodes_of_1_2_and_3_ranks_contribute_the_same_bytes_and_hold_the_same_bits(
    tmp_path: Path,
) -> None:
    rounds, inner = 5, 2
    names = ("alpha", "beta", "gamma")
    config = write_config(tmp_path, peers=len(names), rounds=rounds, inner=inner)

    async def scenario(cluster: LocalCluster) -> None:
        how = ["--new"]
        for name, ranks in zip(names, (1, 2, 3), strict=True):
            node = start_recording(
                cluster, name, [str(config), *how], target="exactness_ranks:main", ranks=ranks
            )
            how = how if how[0] == "--join" else ["--join", await cluster.token_of(node)]
            assert how[1], log_of(node)

    run_dir = play(tmp_path, scenario, timeout_s=90)
    events = read_timeline(run_dir).events
    all_trained_in_step(events, names, rounds=rounds, inner=inner)
    assert [of(Start, events, name)[0].ranks for name in names] == [1, 2, 3]
    outer_P, momentum_P = odd.values(-1), np.zeros(odd.ELEMENTS, np.float32)
    held, expected, names_of = b"", list[str](), list[dict[str, str]]()
    for round_ in range(rounds):
        delta_P = outer_P - odd.values(inner * (round_ + 1) - 1)
        outer_step(outer_P, momentum_P, delta_P)
        expected.append(state_digest(outer_P, momentum_P))
        held += outer_P.tobytes()
    assert len(set(expected)) == rounds
    for name in names:
        record = json.loads((run_dir / name / "daemon.json").read_text(encoding="utf-8"))
        contributed = [record["manifests"][str(round_ + 1)] for round_ in range(rounds)]
        assert [len(by_peer) for by_peer in contributed] == [len(names)] * rounds
        names_of = names_of or contributed
        assert contributed == names_of, "a contribution has one name, whoever has it"
        assert digests(events, name) == expected
        assert last_state(run_dir, name, rounds=rounds).outer.tobytes() == outer_P.tobytes()
        assert (run_dir / name / odd.HELD).read_bytes() == held, f"in the ranks of {name}"
        assert_no_torch(record["modules"])
    assert len({name for by_peer in names_of for name in by_peer.values()}) == 3 * rounds


def outer_step(
    outer_P: NDArray[np.float32], momentum_P: NDArray[np.float32], delta_P: NDArray[np.float32]
) -> None:
    """In place: three nodes contribute the same pseudo-gradient, with equal weights."""
    mean_P = ((delta_P + delta_P) + delta_P) * np.float32(1 / 3)
    beta, lr = np.float32(0.9), np.float32(0.7)
    momentum_P[:] = momentum_P * beta + mean_P
    outer_P[:] = outer_P - (momentum_P * beta + mean_P) * lr


def assert_no_torch(modules: Sequence[str]) -> None:
    assert "lowcomm.daemon.daemon" in modules
    assert "lowcomm.checkpoints.checkpoint" in modules
    assert "torch" not in modules


# The daemon's weight --------------------------------------------------------------------------


@pytest.mark.deadline(90)
def test_a_daemon_has_no_torch_and_says_what_it_cost_until_it_listened(tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=1, rounds=30, inner=8, hidden=32)
    looked: list[bool] = []

    async def scenario(cluster: LocalCluster) -> None:
        alpha = start_recording(cluster, "alpha", [str(config), "--new"], target="", ranks=1)
        await seen(cluster, lambda events: any(isinstance(e, Commit) for e in events))
        (rank,) = ranks_of(alpha)
        assert maps_torch(rank), "this is how it looks where torch is"
        looked.append(maps_torch(alpha.child.pid))

    run_dir = play(tmp_path, scenario, timeout_s=60)
    assert looked == [False]
    record = json.loads((run_dir / "alpha" / "daemon.json").read_text(encoding="utf-8"))
    assert_no_torch(record["modules"])
    events = read_timeline(run_dir).events
    (start,), (listening,) = of(Start, events, "alpha"), of(Listening, events, "alpha")
    # One process cannot use more CPU time than its few threads have had of the clock.
    assert 0.01 < listening.listen_cpu_s < 4 * (listening.t - start.exec_t + 0.1)
    (peer,) = build_summary(run_dir, run={}).peers
    assert peer.listen_cpu_s == listening.listen_cpu_s


# Ranks are disposable -------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.deadline(180)  # Ranks that share a busy core wait for each other at each step.
def test_a_killed_rank_costs_its_node_no_outer_state(tmp_path: Path) -> None:
    rounds, names = 30, ("alpha", "beta")
    config = write_config(tmp_path, peers=2, rounds=rounds, inner=6, hidden=32, window=32)

    async def scenario(cluster: LocalCluster) -> None:
        await start_pair(cluster, config, joiner=["node.ranks=2"])
        alpha, beta = cluster.nodes
        await seen(cluster, lambda events: commits_by(events, 2) >= 4)
        before = ranks_of(beta)
        assert len(before) == 2
        os.kill(before[1], signal.SIGKILL)
        await seen(cluster, lambda events: commits_by(events, 1) >= 1)
        # alpha alone is fast: on a busy machine it would be done before beta's ranks are back.
        (rank,) = ranks_of(alpha)
        os.kill(rank, signal.SIGSTOP)
        await seen(cluster, lambda events: len(of(RanksReady, events, "beta")) >= 2)
        os.kill(rank, signal.SIGCONT)
        assert not set(ranks_of(beta)) & set(before), "the other rank was not replaced"

    run_dir = play(tmp_path, scenario, timeout_s=150)
    events = read_timeline(run_dir).events
    (lost,) = [event for event in events if isinstance(event, RanksLost)]
    # Which rank it names is open: the other one fails too, as soon as gloo misses the dead one.
    assert (lost.name, lost.attempt) == ("beta", 0)
    assert [each.attempt for each in of(RanksReady, events, "beta")] == [0, 1]
    # beta has applied every round, those without it too, and was sent no state but its first one.
    rosters = [len(commit.roster) for commit in of(Commit, events, "beta")]
    assert rosters[:2] == rosters[-2:] == [2, 2], "it was not counted before, or not again"
    assert 1 in rosters
    assert digests(events, "alpha") == digests(events, "beta")
    served = [line for line in raw_events(run_dir, "alpha") if line["kind"] == "snapshot_served"]
    assert [line["t"] < lost.t for line in served] == [True]
    states = [last_state(run_dir, name, rounds=rounds) for name in names]
    assert states[0].outer.tobytes() == states[1].outer.tobytes()
    assert states[0].momentum.tobytes() == states[1].momentum.tobytes()
    for name in names:
        (end,) = of(Finished, events, name)
        assert (end.outer_steps, end.state_digest) == (rounds, digests(events, name)[-1])


def commits_by(events: Sequence[Event], count: int) -> int:
    """How many commits, as alpha saw them, had a roster of so many."""
    return sum(len(commit.roster) == count for commit in of(Commit, events, "alpha"))


# Somebody's own program -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(100)
def test_a_users_own_program_of_15_lines_trains(tmp_path: Path) -> None:
    rounds = 20
    config = write_config(tmp_path, peers=2, rounds=rounds, inner=10)
    program = HERE / "exactness_train.py"

    async def scenario(cluster: LocalCluster) -> None:
        how = [str(config), "--new", "--set", "run.method.outer_momentum=0.3"]
        for name in ("alpha", "beta"):
            mine = (
                f"name={name}",
                f"directory={cluster.run_dir / name}",
                f"corpus={tmp_path / TEXT}",
            )
            arguments = [part for override in mine for part in ("--set", f"node.{override}")]
            command = ["peer", *how, *arguments, "--", sys.executable, str(program)]
            how = ["--join", await cluster.token_of(cluster.start_node(name, command))]
            assert how[1], log_of(cluster.nodes[-1])

    run_dir = play(tmp_path, scenario, timeout_s=60)
    events = read_timeline(run_dir).events
    assert not [event for event in events if isinstance(event, RanksLost)]
    assert digests(events, "alpha") == digests(events, "beta")
    for name in ("alpha", "beta"):
        (end,) = of(Finished, events, name)
        assert (end.outer_steps, len(digests(events, name))) == (rounds, rounds)
        outer, _ = last_state(run_dir, name, rounds=rounds)
        np.testing.assert_allclose(outer, [2.0, 1.0], atol=0.02)
        slope, offset = outer.tolist()
        assert f"slope {slope} offset {offset}\n" in (run_dir / name / LOG).read_text("utf-8")
