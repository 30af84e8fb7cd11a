"""Contributions that cannot be summed, between real daemons: equal bits, and nobody is lost."""

import signal
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit
from sims.paced.rank import RankSpeed
from tests.cluster.paced_shell import PacedShell
from tests.cluster.running import (
    commits,
    commits_until,
    ending,
    marked_processes,
    of,
    token_of,
    until,
    write_config,
)

NAMES = ("alpha", "beta", "gamma")
PACE = RankSpeed(step_s=0.02, elements=460_000)
"""Two parts."""


@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    "codec", ["topk", "powersgd", pytest.param("2bit", marks=pytest.mark.nightly)]
)
@pytest.mark.long
def test_peers_gather_and_one_that_was_killed_is_counted_again(tmp_path: Path, codec: str) -> None:
    """gamma dies between any two pieces, and comes back as another life of itself."""
    write_config(tmp_path, peers=3, rounds=100_000, inner=3)
    method = ["--set", f"run.method.contribution_codec={codec}"]
    every = ["--set", "node.checkpoint_every_rounds=3"]
    alpha, beta, gamma = (tmp_path / name for name in NAMES)
    with ending(PacedShell(tmp_path, PACE)) as shell:
        peers = [shell.node("alpha", "--new", *method, *every)]
        token = token_of(alpha)
        peers += [shell.node(name, *method, *every, "--join", token) for name in NAMES[1:]]
        until(lambda: counted(gamma) >= 3, within_s=40, what="gamma counted")
        shell.kill(gamma)
        peers.pop().wait(within_s=10)
        reached = commits(alpha)[-1]
        for node in (alpha, beta):
            commits_until(node, reached + 2)
        before = counted(gamma)
        peers.append(shell.start("resume", str(gamma)))
        until(lambda: counted(gamma) >= before + 2, within_s=40, what="gamma counted again")
        for peer in peers:
            peer.signal(signal.SIGINT)
            assert peer.wait(within_s=10) == 130, peer.err
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
