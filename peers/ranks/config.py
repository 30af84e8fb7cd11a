"""The configuration of a node's ranks, and the place of their sockets. Must NOT create anything."""

import os
import secrets
import tempfile
from dataclasses import dataclass

from peers.ipc.daemon_socket import UNIX_PATH_BYTES_MAX
from protocols.types import ConfigError

_PREFIX, _RANDOM_BYTES = "lowcomm-", 6
DIRECTORY_NAMES = _PREFIX + "[0-9a-f]" * 2 * _RANDOM_BYTES
"""The names of directories with local sockets, as a glob pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksConfig:
    """The part of `[node]` about ranks."""

    ranks: int
    directory: str = ""
    """A fresh 0700 directory for the sockets is made inside this one. Empty takes the user's
    runtime directory or, if that is not usable, the temporary one."""
    port_range: tuple[int, int] = (20000, 29999)
    """MASTER_PORT of each attempt is a free port of this range; both ends count."""
    hang_timeout_s: float = 60.0
    """A rank that trains is hung if its step counter stands still for this long, in seconds."""
    restarts_max: int = 5
    """Give up after this many restarts in a row that brought no contribution, or none of use."""

    def __post_init__(self) -> None:
        low, high = self.port_range
        if self.ranks < 1:
            raise ConfigError(f"ranks must be positive, got {self.ranks}")
        if not 1 <= low <= high <= 65535:
            raise ConfigError(f"port_range must be within 1 and 65535, got {self.port_range}")
        if self.hang_timeout_s <= 0 or self.restarts_max < 0:
            raise ConfigError(
                f"hang_timeout_s must be positive and restarts_max not negative, "
                f"got {self.hang_timeout_s} and {self.restarts_max}"
            )


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
