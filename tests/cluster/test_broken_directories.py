"""A node whose directory lacks something, or is in use: one line says what, and what to do."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lowcomm.checkpoints.checkpoint import CHECKPOINTS
from lowcomm.startup.identity import COPY, RECORD
from peers.security.keys import OWN, OWN_KEY, OwnKey
from peers.security.trust_store import TRUSTED
from peers.storage.wal import FILE
from tests.cluster.paced_shell import PacedShell
from tests.cluster.running import (
    Command,
    commits,
    commits_until,
    ending,
    listens,
    record,
    write_config,
)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PacedShell]:
    write_config(tmp_path, peers=1, rounds=1_000_000)
    with ending(PacedShell(tmp_path)) as made:
        yield made


def line_of(command: Command) -> str:
    """Its only one of an error, which a person can mend."""
    assert command.popen.returncode == 2, command.err
    assert "Traceback" not in command.err
    (line,) = [line for line in command.err.splitlines() if line.startswith("lowcomm: ")]
    return line


@pytest.mark.long
def test_a_node_that_runs_is_said_to_run_and_where(shell: PacedShell, tmp_path: Path) -> None:
    """Its port is taken, too: that is no reason to choose another one."""
    alpha = tmp_path / "alpha"
    shell.node("alpha", "--new")
    port = listens(alpha)
    pid = record(alpha)["pid"]
    for command in (
        shell.run("resume", str(alpha)),
        shell.run("recover", str(alpha)),
        shell.run("peer", "run.toml", "--new", "--set", f'node.directory="{alpha}"'),
    ):
        line = line_of(command)
        assert f"in use by a running peer (alpha, pid {pid}): stop it first" in line
        assert f"kill -INT {pid}" in line
        assert port not in line
        assert ("node.name" in line) == (command is shell.commands[-1])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def another_key(path: Path) -> None:
    place = path.parent / "other"
    place.mkdir()
    OwnKey(place)
    (place / OWN_KEY).rename(path)


DAMAGE: dict[str, tuple[str, Callable[[Path], None], tuple[str, ...]]] = {
    "no record": (RECORD, Path.unlink, ("is gone", COPY, "`cp ")),
    "a torn record": (RECORD, cut, ("cannot be read", COPY, "`cp ")),
    "no log": (FILE, Path.unlink, ("the log of", "is gone", "--join @FILE")),
    "no checkpoints": (
        CHECKPOINTS,
        shutil.rmtree,
        ("the state of the run", "is lost", "committed rounds", CHECKPOINTS, "--new"),
    ),
    "no key": (OWN_KEY, Path.unlink, ("is missing", "put it back", "lowcomm token")),
    "a torn key": (OWN_KEY, cut, ("cannot be used", "no whole PEM private key")),
    "another key": (OWN_KEY, another_key, ("is not the key of", OWN)),
    "a torn certificate": (OWN, cut, ("cannot be used", "no whole PEM certificate")),
    "a torn trust store": (TRUSTED, cut, ("cannot be used", "not whole", "lowcomm token")),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> PacedShell:
    """Its node alpha has ended. `whole` is a copy of the directory of this node."""
    place = tmp_path_factory.mktemp("ended")
    write_config(place, peers=1, rounds=1_000_000)
    with ending(PacedShell(place)) as made:
        node = made.node("alpha", "--new")
        commits_until(place / "alpha", 2)
        node.signal(signal.SIGTERM)
        node.wait(within_s=10)
    shutil.copytree(place / "alpha", place / "whole")
    return made


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_missing_or_torn_is_named_with_what_to_do(what: str, ended: PacedShell) -> None:
    name, damage, words = DAMAGE[what]
    alpha = ended.directory / "alpha"
    shutil.rmtree(alpha)
    shutil.copytree(alpha.with_name("whole"), alpha)
    damage(alpha / name)
    line = line_of(ended.run("resume", str(alpha)))
    assert str(alpha / name) in line
    for word in words:
        assert word in line
    assert "new directory" not in line, "that would give up the run"


def test_a_node_goes_on_after_the_command_that_it_was_told(
    shell: PacedShell, tmp_path: Path
) -> None:
    alpha = tmp_path / "alpha"
    node = shell.node("alpha", "--new")
    commits_until(alpha, 2)
    node.signal(signal.SIGKILL)
    node.wait(within_s=10)
    cut(alpha / RECORD)
    for refused in (
        shell.run("recover", str(alpha)),
        shell.run("peer", "run.toml", "--new", "--set", f'node.directory="{alpha}"'),
        shell.run("resume", str(alpha)),
    ):
        command = line_of(refused).split("`")[1]
    subprocess.run(command, shell=True, check=True)
    had = max(commits(alpha))
    shell.start("resume", str(alpha))
    commits_until(alpha, had + 2)


def test_a_node_that_ended_before_its_run_began_is_told_to_begin_again(
    shell: PacedShell, tmp_path: Path
) -> None:
    alpha = tmp_path / "alpha"
    where = ("--set", 'node.directory="alpha"', "--set", "node.name=alpha")
    node = shell.start("peer", "run.toml", "--new", *where, "--", "sleep", "60")
    listens(alpha)
    node.signal(signal.SIGKILL)
    node.wait(within_s=10)
    line = line_of(shell.run("resume", str(alpha)))
    assert "began no run" in line
    assert "--new" in line
