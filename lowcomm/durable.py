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
