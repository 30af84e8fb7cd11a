"""Directories and files that survive a crash once a call returns. Must NOT know their content."""

import os
import shutil
from pathlib import Path


def make_empty(temporary: Path) -> None:
    """Make an empty directory; its entry in the parent directory is on the disk."""
    if not temporary.parent.exists():
        temporary.parent.mkdir(parents=True)
        sync(temporary.parent.parent)
    if temporary.exists():  # Left by a write that a crash interrupted.
        shutil.rmtree(temporary)
    temporary.mkdir()


def make_private(directory: Path) -> None:
    """Make a directory and its missing parents; only their owner can look into these (0700). What
    exists keeps its mode. Raises OSError."""
    for each in reversed((directory, *directory.parents)):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(exist_ok=True)  # Raises if it exists and is no directory.


def sync(path: Path) -> None:
    """Return when the file's content, or the directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read (0600), and return when it is on the disk. At any
    time the file has the old or the new content, whole. Raises OSError."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)  # Left by a write that a crash interrupted.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    held = os.open(beside, flags, 0o600)
    try:
        with open(held, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(held)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)  # It may hold a part of a key.
        raise
    sync(path.parent)
