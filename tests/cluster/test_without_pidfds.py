"""Kernels without pidfd_open, and seccomp profiles that forbid it: nodes run as elsewhere."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import RanksLost
from sims.cluster.process_tree import descendants
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import (
    alive,
    commits,
    commits_until,
    ending,
    leaves,
    marked_processes,
    new_shell,
    of,
    token_of,
    until,
    write_config,
)
from tests.cluster.without_pidfds import forbidding

NOTICED_S = 2.0
"""A rank's end is noticed at once; the rest is a busy machine."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PacedShell]:
    with ending(PacedShell(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("refusal", ["ENOSYS", "EPERM"])
def test_the_call_is_taken_from_a_process_and_from_its_children(refusal: str) -> None:
    """What the other tests here rely on."""
    number = int(getattr(errno, refusal))
    program = (
        f"{forbidding(number)}\nimport os, subprocess\n"
        "look = 'import os\\ntry: os.pidfd_open(os.getpid())\\n'"
        "'except OSError as error: print(error.errno)'\n"
        "exec(look, {})\nsubprocess.run([sys.executable, '-c', look])"
    )
    said = subprocess.check_output([sys.executable, "-u", "-c", program], text=True)
    assert said.split() == [str(number)] * 2


@pytest.mark.deadline(120)
@pytest.mark.parametrize("refusal", ["ENOSYS", pytest.param("EPERM", marks=pytest.mark.long)])
def test_two_nodes_run_lose_a_rank_and_end(shell: PacedShell, tmp_path: Path, refusal: str) -> None:
    """Seen: the founder died with `OSError: [Errno 38] Function not implemented`."""
    write_config(tmp_path, peers=2, rounds=100_000)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    before = forbidding(int(getattr(errno, refusal)))
    first = shell.node("alpha", "--new", before=before)
    second = shell.node("beta", "--join", token_of(alpha), before=before)
    counts_together(alpha, ("alpha", "beta"))
    ranks = descendants(second.pid)
    assert ranks
    killed = time.monotonic()
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    until(lambda: of(RanksLost, beta), within_s=NOTICED_S, what="beta without its ranks")
    assert time.monotonic() - killed < NOTICED_S
    assert not alive(ranks)
    counts_together(alpha, ("alpha", "beta"))
    (rank,) = leaves(second.pid)
    os.kill(rank, signal.SIGSTOP)
    for node in (second, first):
        node.signal(signal.SIGINT)
        assert node.wait(within_s=10) == 130, node.err
        assert "Traceback" not in node.err
    assert marked_processes() == {}


@pytest.mark.deadline(120)
@pytest.mark.long
def test_the_ranks_of_a_zygote_are_replaced_and_die_with_their_node(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, peers=1, rounds=100_000))
    alpha = tmp_path / "alpha"
    with new_shell(tmp_path) as shell:
        where = ("--set", 'node.directory="alpha"', "--set", "node.name=alpha")
        two = ("--set", "node.ranks=2")
        node = shell.start("peer", config, "--new", *where, *two, before=forbidding(errno.ENOSYS))
        commits_until(alpha, 1, within_s=60)
        everything = descendants(node.pid)
        (zygote,) = [pid for pid in everything if descendants(pid) == everything - {pid}]
        ranks = descendants(zygote)
        assert len(ranks) == 2
        os.kill(min(ranks), signal.SIGKILL)
        until(lambda: of(RanksLost, alpha), within_s=NOTICED_S, what="alpha without its ranks")
        until(lambda: not alive(ranks), within_s=5, what="the other rank gone")
        commits_until(alpha, max(commits(alpha)) + 2)
        assert zygote in descendants(node.pid)
        os.kill(zygote, signal.SIGKILL)  # Its ranks die with it; another one is started.
        until(lambda: len(of(RanksLost, alpha)) == 2, within_s=NOTICED_S, what="alpha alone")
        commits_until(alpha, max(commits(alpha)) + 2, within_s=60)
        node.signal(signal.SIGINT)
        assert node.wait(within_s=10) == 130, node.err
    assert marked_processes() == {}
