"""Directories with local sockets: private, locked, and removed after a killed daemon."""

import os
import shutil
import socket
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from peers.ipc.daemon_socket import UNIX_PATH_BYTES_MAX
from peers.ranks.socket_directory import (
    LOCK,
    YOUNG_S,
    SocketDirectory,
    free_directory,
    remove_stale,
)
from protocols.types.errors import ConfigError

KILLED = "lowcomm-0123456789ab"


@pytest.fixture
def short() -> Generator[Path]:
    """A directory with a path that is short enough for sockets."""
    parent = Path(tempfile.mkdtemp(prefix="lc"))
    yield parent
    shutil.rmtree(parent)


def make_old(directory: Path) -> None:
    """Make a directory older than the time that a daemon has to lock it."""
    before = directory.stat().st_mtime - 2 * YOUNG_S
    os.utime(directory, (before, before))


def leave_behind(parent: Path, name: str = KILLED, *, beside: str = "") -> Path:
    """What a killed daemon leaves; `beside`: another file in it."""
    directory = parent / name
    directory.mkdir()
    (directory / LOCK).touch()
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(str(directory / "bus"))
    if beside:
        (directory / beside).touch()
    make_old(directory)
    return directory


def test_it_is_private_while_it_is_open_and_gone_afterwards(short: Path) -> None:
    directory = SocketDirectory(str(short))
    assert not list(short.iterdir())
    directory.make_directory()
    path = Path(directory.path)
    assert (path.parent, path.stat().st_mode & 0o777) == (short, 0o700)
    directory.close()
    directory.close()
    assert not list(short.iterdir())


def test_the_next_daemon_removes_what_a_killed_one_left(short: Path) -> None:
    killed = leave_behind(short)
    directory = SocketDirectory(str(short))
    directory.make_directory()
    assert not killed.exists()
    directory.close()


def test_what_lives_is_young_or_is_none_of_ours_stays(short: Path) -> None:
    living = SocketDirectory(str(short))
    living.make_directory()
    make_old(Path(living.path))
    young = leave_behind(short)
    os.utime(young)
    names = ("lowcomm-run", "lowcomm-0123456789az", "other-0123456789ab")
    others = [leave_behind(short, name) for name in names]
    others.append(leave_behind(short, "lowcomm-fedcba987654", beside="node.json"))
    unlocked = short / "lowcomm-aaaaaaaaaaaa"
    unlocked.mkdir()
    make_old(unlocked)
    remove_stale(short)
    assert all(each.exists() for each in (Path(living.path), young, unlocked, *others))
    living.close()


def test_the_runtime_directory_is_used_if_it_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="lc") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        chosen = free_directory("")
        assert os.path.dirname(chosen) == runtime
        assert not os.path.exists(chosen)
        assert free_directory("") != chosen
    assert os.path.dirname(free_directory("")) == tempfile.gettempdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert os.path.dirname(free_directory("")) == tempfile.gettempdir()


def test_a_path_that_is_too_long_for_a_socket_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * UNIX_PATH_BYTES_MAX)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert os.path.dirname(free_directory("")) == tempfile.gettempdir()
    with pytest.raises(ConfigError, match="at most 107"):
        free_directory(str(long))
    with pytest.raises(ConfigError, match="writable"):
        free_directory("/nonexistent")
