"""One holder at a time, and none after its end."""

import os
from pathlib import Path

import pytest

from peers.storage.file_lock import open_locked


def test_a_file_has_one_lock_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError):
        open_locked(path)
    held = open_locked(path, make=True)
    assert path.stat().st_mode & 0o777 == 0o600
    before = len(os.listdir("/proc/self/fd"))
    for make in (False, True):
        with pytest.raises(BlockingIOError):
            open_locked(path, make=make)
    assert len(os.listdir("/proc/self/fd")) == before, "a refused one leaves no descriptor"
    os.close(held)
    again = open_locked(path)
    assert not os.get_inheritable(again)
    os.close(again)
