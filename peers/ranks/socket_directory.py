"""The directory of a daemon's local sockets. It is removed at the end of its daemon, or by the next
daemon of the same user if its own was killed.

Must NOT serve a socket.
"""

import os
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path

from peers.ipc.daemon_socket import UNIX_PATH_BYTES_MAX
from peers.storage import open_locked
from protocols.types import ConfigError

_PREFIX, _RANDOM_BYTES = "lowcomm-", 6
DIRECTORY_NAMES = _PREFIX + "[0-9a-f]" * 2 * _RANDOM_BYTES
"""The names of these directories, as a glob pattern."""
LOCK = "sockets.lock"
"""A file that the daemon has locked for as long as it lives."""
YOUNG_S = 60.0
"""A directory may be so many seconds old before its daemon has locked it."""


class SocketDirectory:
    """One such directory: `make_directory`, then `close`. Its path is known from the start."""

    def __init__(self, parent: str = "") -> None:
        """`parent`: as RanksConfig.directory. Raises ConfigError."""
        self.path = free_directory(parent)
        self._lock = -1

    def make_directory(self) -> None:
        """Make the directory, and remove those of killed daemons beside it. Raises OSError."""
        remove_stale(Path(self.path).parent)
        os.mkdir(self.path, 0o700)
        self._lock = open_locked(Path(self.path) / LOCK, make=True)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def free_directory(parent: str) -> str:
    """A path that does not exist yet, short enough for the sockets in it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for candidate in (parent,) if parent else (runtime, tempfile.gettempdir()):
        path = f"{candidate}/{_PREFIX}{secrets.token_hex(_RANDOM_BYTES)}"
        short = len(os.fsencode(f"{path}/lifeline")) <= UNIX_PATH_BYTES_MAX
        if candidate and short and os.access(candidate, os.W_OK | os.X_OK):
            return path
    raise ConfigError(
        "no directory for the ranks' sockets: it must be writable, and a Unix socket's path has "
        f"at most {UNIX_PATH_BYTES_MAX} bytes (set XDG_RUNTIME_DIR or TMPDIR)"
    )


def remove_stale(parent: Path) -> None:
    """Remove this user's directories of daemons that live no more. A directory that holds anything
    but sockets and their lock stays: it is none of ours."""
    for directory in parent.glob(DIRECTORY_NAMES):
        try:
            found = directory.lstat()
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > YOUNG_S:
                _remove_unless_locked(directory)
        except OSError:
            continue  # Its daemon lives, another one has removed it, or no daemon made it.


def _remove_unless_locked(directory: Path) -> None:
    lock = open_locked(directory / LOCK)
    try:
        entries = [each for each in directory.iterdir() if each.name != LOCK]
        if all(stat.S_ISSOCK(each.lstat().st_mode) for each in entries):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)
