"""Who a node is across restarts: its directory, its peer id and how it was started.

One live daemon per directory (an advisory lock). Must NOT know what the run does.
"""

import fcntl
import json
import os
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocols.errors import ConfigError
from protocols.ids import PeerId

RECORD = "node.json"
LOCK = "lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """node.json: what `lowcomm resume` needs to start this node again."""

    peer: str
    name: str
    incarnation: int
    run: int = 0
    """64 bits that name the run; 0 until it is known."""
    leads: bool = False
    """It started the run, and starts it again."""
    join: str = ""
    """The address it joined at."""
    config: str = ""
    """JSON of its configuration file, `[run]` only where it was given."""
    command: tuple[str, ...] = ()
    """The user's own training program, if there is one."""
    pid: int = 0
    address: str = ""
    bus: str = ""
    """ZeroMQ endpoint for `status` while it runs."""


class NodeDirectory:
    """The directory of one node, held by this process until `close`."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when another daemon holds it, or it cannot be made."""
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"node.directory {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(
                f"node.directory {self.path} is in use by a running peer: "
                "stop it, or give this node another name or directory"
            ) from error

    def read(self) -> Record | None:
        """What an earlier life wrote."""
        return read_record(self.path)

    def write(self, record: Record) -> None:
        """Replace node.json at once or not at all."""
        temporary = self.path / (RECORD + ".new")
        temporary.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
        temporary.replace(self.path / RECORD)

    def close(self) -> None:
        os.close(self._lock)


def read_record(directory: Path) -> Record | None:
    """The node.json of a directory, or None. Raises ConfigError when it is damaged."""
    try:
        values: dict[str, Any] = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        values["command"] = tuple(values.get("command", ()))
        return Record(**values)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{directory / RECORD} cannot be read: {error}") from error


def node_name(configured: str) -> str:
    """The node's name: as configured, or the host's. Raises ConfigError for an unusable one."""
    name = configured or re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().split(".")[0])[:32]
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"node.name {name!r}: use up to 32 letters, digits, - and _, beginning with a letter "
            "or digit"
        )
    return name


def new_peer_id(name: str) -> PeerId:
    """Readable, sortable and never used before."""
    return PeerId(f"{name}.{secrets.token_hex(4)}")


def exec_time() -> float:
    """Unix seconds at which this process was started, from the kernel's own count."""
    stat = Path("/proc/self/stat").read_text(encoding="ascii")
    ticks = int(stat.rpartition(")")[2].split()[19])
    started_s = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started_s
