"""Contributions that cannot be summed, between real processes: equal bits, and nobody is lost."""

import signal
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit
from tests.cluster.running import (
    commits,
    commits_until,
    marked_processes,
    new_shell,
    of,
    token_of,
    until,
    write_config,
)

NAMES = ("alpha", "beta", "gamma")


@pytest.mark.deadline(300)  # Six processes that compute.
@pytest.mark.parametrize("codec", ["topk", "2bit", "powersgd"])
@pytest.mark.long
def test_peers_gather_and_one_that_was_killed_is_counted_again(tmp_path: Path, codec: str) -> None:
    """gamma dies between any two pieces, and comes back as another life of itself. Two parts."""
    config = write_config(tmp_path, peers=3, rounds=100_000, inner=3, hidden=128)
    method = ["--set", f"run.method.contribution_codec={codec}"]
    every = ["--set", "node.checkpoint_every_rounds=3"]
    alpha, beta, gamma = (tmp_path / name for name in NAMES)
    with new_shell(tmp_path) as shell:
        peers = [shell.peer("alpha", str(config), "--new", *method, *every)]
        token = token_of(alpha)
        joins = (str(config), *method, *every, "--join", token)
        peers += [shell.peer(name, *joins) for name in NAMES[1:]]
        until(lambda: counted(gamma) >= 3, within_s=100, what="gamma counted")
        shell.kill(gamma)
        peers.pop().wait(within_s=10)
        reached = commits(alpha)[-1]
        for node in (alpha, beta):
            commits_until(node, reached + 2, within_s=60)
        before = counted(gamma)
        peers.append(shell.start("resume", str(gamma)))
        until(lambda: counted(gamma) >= before + 2, within_s=100, what="gamma counted again")
        for peer in peers:
            peer.signal(signal.SIGINT)
            assert peer.wait(within_s=40) == 130, peer.err
            assert "Traceback" not in peer.err
    states: dict[int, set[str]] = {}
    for node in (alpha, beta, gamma):
        for commit in of(Commit, node):
            states.setdefault(commit.round, set()).add(commit.state_digest)
    assert {len(found) for found in states.values()} == {1}, "somebody has other bits"
    assert len(states) == max(states) > 6
    assert len({digest for found in states.values() for digest in found}) == len(states)
    assert marked_processes() == {}


def counted(node: Path) -> int:
    """In how many rounds it was, as it knows."""
    return sum(commit.counted for commit in of(Commit, node))
