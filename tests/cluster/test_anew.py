"""A log that cannot be read, and a complete checkpoint beside it: the run goes on from there."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_cut
from lowcomm.reports.events import Commit, Forked
from peers.storage.wal import FILE
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import commits, commits_until, ending, of, token_of, until, write_config
from tests.marks import LONG, NIGHTLY

EVERY = ("--set", "node.checkpoint_every_rounds=2")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PacedShell]:
    with ending(PacedShell(tmp_path)) as made:
        yield made


def damage(directory: Path) -> bytes:
    """One byte, which no crash can have torn; what the file held."""
    whole = (directory / FILE).read_bytes()
    middle = len(whole) // 2
    (directory / FILE).write_bytes(
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    )
    return (directory / FILE).read_bytes()


@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    "gone",
    [pytest.param(False, marks=NIGHTLY), pytest.param(True, marks=LONG)],
    ids=["damaged", "deleted"],
)
def test_the_only_node_goes_on_from_its_checkpoint(
    shell: PacedShell, tmp_path: Path, *, gone: bool
) -> None:
    """Seen: "cannot trust .../wal ... start this node with an empty directory", and the run was
    lost although complete checkpoints lay beside it."""
    write_config(tmp_path, peers=1, rounds=100_000)
    alpha = tmp_path / "alpha"
    node = shell.node("alpha", "--new", *EVERY)
    commits_until(alpha, 6)
    node.signal(signal.SIGKILL)
    node.wait(within_s=5)
    known = {commit.round: commit.state_digest for commit in of(Commit, alpha)}
    broken = damage(alpha)
    if gone:
        (alpha / FILE).unlink()
    else:
        command = f"lowcomm recover --from-checkpoint {alpha}"
        for refused in (shell.run("resume", str(alpha)), shell.run("recover", str(alpha))):
            assert refused.popen.returncode != 0
            assert command in refused.err
            assert "empty directory" not in refused.err
    newest, _ = newest_checkpoint(alpha / "checkpoints")
    assert newest is not None
    cut = read_cut(newest)
    done = shell.run("recover", "--from-checkpoint", str(alpha))
    assert done.popen.returncode == 0, done.err
    assert f"begins another log at its checkpoint of round {cut.round} " in done.out
    if not gone:
        assert (alpha / "unreadable" / "001" / FILE).read_bytes() == broken
    had = len(of(Commit, alpha))
    shell.start("resume", str(alpha))
    until(lambda: len(of(Commit, alpha)) >= had + 4, within_s=30, what="rounds after it")
    later = of(Commit, alpha)[had:]
    assert [commit.round for commit in later[:4]] == [cut.round + n for n in (1, 2, 3, 4)]
    assert known[cut.round] == cut.fragments[0].state_digest
    (fork,) = of(Forked, alpha)
    assert fork.voter_name == "alpha"
    asked = shell.run("recover", "--from-checkpoint", str(alpha))
    assert "in use by a running peer" in asked.err


@pytest.mark.long
@pytest.mark.deadline(120)
def test_of_several_nodes_one_goes_on_and_the_others_join_it(
    shell: PacedShell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=2, rounds=100_000)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    nodes = [shell.node("alpha", "--new", *EVERY)]
    nodes.append(shell.node("beta", "--join", token_of(alpha), *EVERY))
    counts_together(alpha, ("alpha", "beta"))
    commits_until(alpha, 6)
    for node in nodes:
        node.signal(signal.SIGKILL)
        node.wait(within_s=5)
    readable = shell.run("recover", "--from-checkpoint", str(alpha))
    assert (readable.popen.returncode, "can be read" in readable.err) == (2, True)
    damage(alpha)
    damage(beta)
    asked = shell.run("recover", "--from-checkpoint", str(alpha))
    assert (asked.popen.returncode, "--force" in asked.err) == (2, True)
    assert "no longer voters: beta" in asked.out
    done = shell.run("recover", "--from-checkpoint", "--force", str(alpha))
    assert done.popen.returncode == 0, done.err
    had = commits(alpha)[-1]
    shell.start("resume", str(alpha))
    commits_until(alpha, had + 3)
    (beta / FILE).rename(beta / "wal.damaged")
    shell.start("resume", str(beta), "--join", token_of(alpha))
    counts_together(alpha, ("alpha", "beta"))
