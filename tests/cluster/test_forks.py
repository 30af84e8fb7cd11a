"""Two nodes lose each other: one goes on alone, they meet again; a witness; `recover --force`."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, Dropped, Forked, GaveUp, Member, Witness
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import (
    commits,
    commits_until,
    ending,
    of,
    token_of,
    until,
    write_config,
)

LONELY = ("--set", "run.protocol.lonely_after_s=4.5")
SILENT = ("--set", "run.protocol.silence_timeout_s=2.0")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PacedShell]:
    with ending(PacedShell(tmp_path)) as made:
        yield made


def agree(*directories: Path) -> None:
    """Where two peers applied the same round of the same branch last, they hold equal states."""
    last = [{x.round: x.state_digest for x in of(Commit, path)} for path in directories]
    shared = sorted(set(last[0]).intersection(*last[1:]))
    assert shared, "no round in common"
    assert len({digests[shared[-1]] for digests in last}) == 1


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(90)
def test_the_one_that_is_left_goes_on_alone_and_the_other_joins_anew(
    shell: PacedShell, tmp_path: Path
) -> None:
    """With real models, the parameters of which are replaced."""
    config = str(write_config(tmp_path, peers=2, rounds=100_000))
    first = shell.peer("alpha", config, "--new", *LONELY)
    shell.peer("beta", config, *LONELY, "--join", token_of(tmp_path / "alpha"))
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    commits_until(beta, 3)
    first.signal(signal.SIGKILL)
    first.wait(within_s=5)
    until(lambda: of(Forked, beta), within_s=20, what="beta going on alone")
    (fork,) = of(Forked, beta)
    assert (fork.voter_name, fork.lonely) == ("beta", True)
    commits_until(beta, commits(beta)[-1] + 3)
    shell.start("resume", str(alpha), "--join", token_of(beta))
    until(lambda: of(GaveUp, alpha), within_s=30, what="alpha giving its branch up")
    (gone,) = of(GaveUp, alpha)
    until((Path(gone.kept) / "wal").exists, within_s=5, what="its log kept")
    until(lambda: len(of(Member, beta)) >= 2, within_s=30, what="alpha among the members again")
    had = commits(beta)[-1]
    until(lambda: both_counted(beta, had), within_s=30, what="a round of both")
    commits_until(alpha, had + 3)
    agree(alpha, beta)


def both_counted(directory: Path, after: int) -> bool:
    return any(len(x.roster) == 2 for x in of(Commit, directory) if x.round > after)


@pytest.mark.long
@pytest.mark.deadline(90)
def test_two_that_both_went_on_agree_on_one_branch(shell: PacedShell, tmp_path: Path) -> None:
    """The first one is stopped, not dead: it wakes up as a leader that heard nothing of a fork."""
    write_config(tmp_path, peers=2, rounds=100_000)
    rules = (*LONELY, *SILENT)
    first = shell.node("alpha", "--new", *rules)
    shell.node("beta", *rules, "--join", token_of(tmp_path / "alpha"))
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    commits_until(beta, 3)
    first.signal(signal.SIGSTOP)
    try:
        until(lambda: of(Forked, beta), within_s=20, what="beta going on alone")
        commits_until(beta, commits(beta)[-1] + 3)
    finally:
        first.signal(signal.SIGCONT)
    until(lambda: of(GaveUp, tmp_path), within_s=40, what="one of the two giving its branch up")
    (gone,) = of(GaveUp, tmp_path)
    stays, leaves = (alpha, beta) if gone.name == "beta" else (beta, alpha)
    had = commits(stays)[-1]
    until(lambda: both_counted(stays, had), within_s=40, what="a round of both")
    commits_until(leaves, had + 3)
    agree(alpha, beta)
    assert len(of(Dropped, stays)) <= 1


@pytest.mark.long
@pytest.mark.deadline(60)
def test_with_a_witness_either_of_two_may_die(shell: PacedShell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=2, rounds=100_000)
    first = shell.node("alpha", "--new")
    token = token_of(tmp_path / "alpha")
    shell.node("beta", "--join", token)
    commits_until(tmp_path / "beta", 1)
    watch = tmp_path / "watch"
    directory = ("--set", f'node.directory="{watch}"', "--set", "node.name=watch")
    words = token_of(tmp_path / "alpha", witness=True)
    witness = shell.start("witness", "--join", words, *directory)
    beta = tmp_path / "beta"
    until(lambda: of(Witness, beta), within_s=20, what="a witness")
    commits_until(beta, commits(beta)[-1] + 3)
    first.signal(signal.SIGKILL)
    commits_until(beta, commits(beta)[-1] + 5, within_s=15)
    assert of(Forked, beta) == []
    witness.signal(signal.SIGTERM)
    assert witness.wait(within_s=10) == 143, witness.err
    commits_until(beta, commits(beta)[-1] + 3)


@pytest.mark.long
@pytest.mark.deadline(90)
def test_with_a_witness_either_of_two_that_make_steps_together_may_die(
    shell: PacedShell, tmp_path: Path
) -> None:
    """And who comes back makes steps with the other again, at the same state."""
    method = 'name = "allreduce"\ncommit_every_steps = 8\nsnapshot_every_steps = 16'
    write_config(tmp_path, peers=2, rounds=1_000_000, method=method)
    alpha, beta, watch = (tmp_path / name for name in ("alpha", "beta", "watch"))
    first = shell.node("alpha", "--new")
    token = token_of(alpha)
    shell.node("beta", "--join", token)
    counts_together(beta, ("alpha", "beta"))
    own = ("--set", f'node.directory="{watch}"', "--set", "node.name=watch")
    words = token_of(alpha, witness=True)
    witness = shell.start("witness", "--join", words, *own)
    until(lambda: of(Witness, beta), within_s=20, what="a witness")
    first.signal(signal.SIGKILL)
    commits_until(beta, commits(beta)[-1] + 40, within_s=15)
    shell.start("resume", str(alpha), "--join", token)
    counts_together(beta, ("alpha", "beta"))
    agree(alpha, beta)
    witness.signal(signal.SIGTERM)
    assert witness.wait(within_s=10) == 143, witness.err
    commits_until(beta, commits(beta)[-1] + 40)
    assert of(Forked, tmp_path) == []


@pytest.mark.long
@pytest.mark.deadline(90)
def test_a_person_lets_a_survivor_go_on(shell: PacedShell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=3, rounds=100_000)
    checkpoints = ("--set", "node.checkpoint_every_rounds=2")
    peers = [shell.node("alpha", "--new", *checkpoints)]
    token = token_of(tmp_path / "alpha")
    peers += [shell.node(x, *checkpoints, "--join", token) for x in ("beta", "gamma")]
    gamma = tmp_path / "gamma"
    commits_until(gamma, 6)
    refused = shell.run("recover", "--force", str(gamma))
    assert refused.popen.returncode == 2
    assert "in use by a running peer" in refused.err
    for peer in peers:
        peer.signal(signal.SIGKILL)
        peer.wait(within_s=5)
    asked = shell.run("recover", str(gamma))
    assert (asked.popen.returncode, "--force" in asked.err) == (2, True)
    assert "no longer voters: alpha, beta" in asked.out
    done = shell.run("recover", "--force", str(gamma))
    assert done.popen.returncode == 0, done.err
    had = commits(gamma)[-1]
    shell.start("resume", str(gamma))
    commits_until(gamma, had + 5)
    (fork,) = of(Forked, gamma)
    assert (fork.voter_name, fork.lonely) == ("gamma", False)
