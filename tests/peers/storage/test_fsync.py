"""What is on the disk when we say so."""

import os
import resource
from pathlib import Path

import pytest

from peers.storage.fsync import make_empty, sync, write_private


def test_a_new_directory_is_empty_whatever_was_there(tmp_path: Path) -> None:
    made = tmp_path / "deep" / "new"
    make_empty(made)
    (made / "torn").write_text("half", encoding="utf-8")
    make_empty(made)
    assert list(made.iterdir()) == []
    sync(made)


def test_what_is_not_there_cannot_be_on_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "missing")


def test_what_is_written_is_private_and_on_the_disk_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(held: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{held}"))

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "key"
    (tmp_path / "key.new").write_bytes(b"torn")
    for content in (b"first", b"second"):
        write_private(path, content)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o600
    assert synced == [str(tmp_path / "key.new"), str(tmp_path)] * 2
    assert list(tmp_path.iterdir()) == [path]


def test_what_does_not_fit_on_the_disk_changes_nothing(tmp_path: Path) -> None:
    """The kernel writes a part of it, and refuses the rest."""
    path, limits = tmp_path / "key", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_private(path, b"the key")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_private(path, bytes(200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"the key"
    assert list(tmp_path.iterdir()) == [path], "nothing of a key is left lying about"
