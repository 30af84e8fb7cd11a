"""Who a node is across restarts: its directory, its peer id and how it was started.

One live daemon per directory (an advisory lock). Must NOT know what the run does.
"""

import fcntl
import json
import os
import re
import secrets
import shlex
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from lowcomm.config.schema import FileConfig, validate
from peers.storage.fsync import write_private
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId

RECORD = "node.json"
COPY = "node.json.copy"
"""The same content. Neither the log nor a checkpoint has the node's configuration and command."""
LOCK = "lock"
ANOTHER_NAME = "give this node another name (--set node.name=NAME)"
NAME_CHARS_MAX = 32
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError)
"""What reading a damaged node.json raises."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{NAME_CHARS_MAX - 1}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """node.json: what `lowcomm resume` needs to start this node again."""

    peer: str
    name: str
    incarnation: int
    run: int = 0
    """64 bits that name the run; 0 until it is known."""
    join: str = ""
    """The token with which it joined, or the address at which it joined anew."""
    config: str = ""
    """JSON of its configuration file, `[run]` only where it was given."""
    command: tuple[str, ...] = ()
    """The user's own training program, if there is one."""
    pid: int = 0
    address: str = ""
    bus: str = ""
    """ZeroMQ endpoint for `status` while it runs."""
    witness: bool = False
    """It votes and trains nothing."""


class NodeDirectory:
    """The directory of one node, held by this process until `close`."""

    def __init__(self, path: Path, *, remedy: str = ANOTHER_NAME) -> None:
        """Raises ConfigError when another daemon holds it, or it cannot be made. `remedy`: what to
        do if it is held, beyond stopping that daemon."""
        self.path = path.absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"node.directory: cannot use {self.path}: {error.strerror}; "
                "choose another with --set node.directory=PATH"
            ) from error
        if not _lock(self._lock):
            os.close(self._lock)
            raise ConfigError(_held(self.path, read_record(self.path), remedy))

    def read(self) -> Record | None:
        """What an earlier life wrote."""
        return read_record(self.path)

    def write(self, record: Record) -> None:
        """Replace node.json, and its copy, each at once or not at all."""
        content = json.dumps(asdict(record), indent=1).encode()
        for name in (RECORD, COPY):
            write_private(self.path / name, content)  # A token is in it.

    def close(self) -> None:
        os.close(self._lock)


def in_use(directory: Path) -> bool:
    """A daemon holds this node directory."""
    try:
        held = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # It has no lock, so it is no node's.
    try:
        return not _lock(held)
    finally:
        os.close(held)


def runs(directory: Path, record: Record) -> bool:
    """The daemon that wrote this record still runs. Unlike `in_use` it leaves the lock alone while
    a daemon starts, which would find it taken."""
    return Path(f"/proc/{record.pid}").exists() and in_use(directory)


def check_resumable(directory: Path, record: Record, *, way: bool) -> None:
    """Before a node is started again; `way`: it is known where others may be. Raises ConfigError:
    it runs, or has nothing to go on from."""
    from peers.storage.wal import FILE

    if runs(directory, record):
        raise ConfigError(
            _held(directory, record, f"see what it does: `lowcomm status {directory}`")
        )
    if way or (directory / FILE).exists():
        return
    if not record.run:
        raise ConfigError(
            f"{directory} began no run: its node ended before that; start it again as before "
            "(`lowcomm peer FILE --new`)"
        )
    raise ConfigError(
        f"the log of {directory} is gone ({directory / FILE}): without it this node can neither "
        "find the run nor vote in it. Put the log back; or, if other nodes of the run are left, "
        f"join them as a new one: `lowcomm resume {directory} --join TOKEN`"
    )


def is_node(directory: Path) -> bool:
    """A node was started in this directory, whether or not its node.json is left."""
    return (directory / RECORD).exists() or (directory / COPY).exists()


def _decoded(path: Path) -> Record:
    """Raises one of _UNREADABLE."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    values.update(command=tuple(values.get("command", ())))
    return Record(**values)


def _described(error: Exception, directory: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{directory / RECORD} is gone"
    return f"{directory / RECORD} cannot be read: {error}"


def _mending(directory: Path) -> str:
    """What to do about a node.json that cannot be read; no run is given up for it."""
    try:
        _decoded(directory / COPY)
    except _UNREADABLE:
        return (
            "the node's id, configuration and command were in it; its log and checkpoints are "
            f"still in {directory}: keep them, put {RECORD} back from a backup, and go on with "
            f"`lowcomm resume {directory}`. If other nodes of the run are left, they can give the "
            "state to another node: `lowcomm token` there, then "
            "`lowcomm peer --join TOKEN --set node.directory=PATH` here"
        )
    copy, record = (shlex.quote(str(directory / name)) for name in (COPY, RECORD))
    return f"its copy is whole: put it back with `cp {copy} {record}`, then go on as before"


def _held(directory: Path, record: Record | None, remedy: str) -> str:
    who = f" ({record.name}, pid {record.pid})" if record is not None else ""
    stop = f" (`kill -INT {record.pid}`)" if record is not None else ""
    return (
        f"node.directory {directory} is in use by a running peer{who}: stop it first{stop}, or "
        f"{remedy}"
    )


def read_record(directory: Path) -> Record | None:
    """The node.json of a directory, or None if it is no node's. Raises ConfigError when node.json
    is damaged, or gone beside its copy."""
    try:
        return _decoded(directory / RECORD)
    except _UNREADABLE as error:
        if isinstance(error, FileNotFoundError) and not (directory / COPY).exists():
            return None
        raise ConfigError(f"{_described(error, directory)}; {_mending(directory)}") from error


def recorded_config(directory: Path) -> FileConfig:
    """What the node of this directory was started with. Raises ConfigError."""
    record = read_record(directory)
    if record is None:
        raise ConfigError(f"{directory} is no node's directory: it has no {RECORD}")
    where = str(directory / RECORD)
    try:
        values: object = json.loads(record.config)
    except ValueError as error:
        raise ConfigError(f"{where}: its config is not JSON: {error}") from error
    return cast(FileConfig, validate(FileConfig, values, where=where))


def node_name(configured: str) -> str:
    """The node's name: as configured, or the host's. Raises ConfigError for an unusable one."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname().split(".")[0]).strip("-")
    name = configured or host[:NAME_CHARS_MAX]
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"node.name {name!r} cannot be used: write 1 to {NAME_CHARS_MAX} letters, digits, - "
            "and _, beginning with a letter or digit"
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


def _lock(descriptor: int) -> bool:
    """False: another open file of the same path holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
