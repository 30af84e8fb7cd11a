"""What a node may choose about its ranks, and where their sockets go."""

import os
import tempfile
from pathlib import Path

import pytest

from peers.ipc.daemon_socket import UNIX_PATH_BYTES_MAX
from peers.ranks.config import RanksConfig, free_directory
from protocols.types.errors import ConfigError


@pytest.mark.parametrize(
    "config",
    [
        {"ranks": 0},
        {"ranks": 1, "port_range": (2, 1)},
        {"ranks": 1, "port_range": (0, 1)},
        {"ranks": 1, "port_range": (1, 65536)},
        {"ranks": 1, "hang_timeout_s": 0},
        {"ranks": 1, "restarts_max": -1},
    ],
)
def test_what_cannot_work_is_refused(config: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RanksConfig(**config)  # pyright: ignore[reportArgumentType]


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
