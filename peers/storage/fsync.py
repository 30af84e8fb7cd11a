"""Directories and files that are on the disk when we say so. Must NOT know what is in them."""

import os
import shutil
from pathlib import Path


def make_empty(temporary: Path) -> None:
    """A directory with nothing in it; the one that it is in is on the disk."""
    if not temporary.parent.exists():
        temporary.parent.mkdir(parents=True)
        sync(temporary.parent.parent)
    if temporary.exists():  # From a write that a crash cut short.
        shutil.rmtree(temporary)
    temporary.mkdir()


def sync(path: Path) -> None:
    """Returns when the file's content, or the directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Readable for nobody else (0600), and on the disk when this returns. At any time the whole
    content is there, or what was there before. Raises OSError."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)  # From a write that a crash cut short.
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
