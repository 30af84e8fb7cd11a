"""Advisory locks on files, which end with the process that has them. Must NOT wait for a lock."""

import fcntl
import os
from pathlib import Path


def open_locked(path: Path, *, make: bool = False) -> int:
    """Open and lock a file; close the descriptor to unlock it. `make`: make a missing file, for its
    owner alone (0600). Raises BlockingIOError if another descriptor has the lock, OSError."""
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
