"""The identity of a node across restarts: its directory, its peer id and its node.json.

An advisory lock allows one running daemon for each directory. Must NOT know the state of the run.
"""

import json
import os
import re
import secrets
import shlex
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from lowcomm.config.schema import FileConfig, validate
from peers.storage import make_private, open_locked, write_private
from protocols.types import ConfigError, PeerId

RECORD = "node.json"
COPY = "node.json.copy"
"""A copy with the same content, since neither the log nor a checkpoint holds the node's
configuration and command."""
LOCK = "lock"
ANOTHER_NAME = "give this node another name (--set node.name=NAME)"
NAME_CHARS_MAX = 32
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError)
"""Exceptions from reading a missing or damaged node.json."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{NAME_CHARS_MAX - 1}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """The content of node.json, with which `lowcomm resume` starts this node again."""

    peer: str
    name: str
    incarnation: int
    run: int = 0
    """64 bits that name the run; 0 until it is known."""
    join: str = ""
    """The address at which this node was admitted; before that its token, which admits other nodes
    too and so does not stay here; "" on a founder."""
    config: str = ""
    """The node's configuration in JSON, with `[run]` only if it was given."""
    command: tuple[str, ...] = ()
    """Command line of the user's own training program; empty: the built-in one."""
    pid: int = 0
    address: str = ""
    bus: str = ""
    """ZeroMQ endpoint for local commands such as `lowcomm status` while the daemon runs."""
    witness: bool = False
    """This node votes and trains nothing."""


class NodeDirectory:
    """The directory of one node, locked by this process until `close`."""

    def __init__(self, path: Path, *, remedy: str = ANOTHER_NAME) -> None:
        """Make and lock the directory. Raises ConfigError if another daemon has locked it, or it
        cannot be made. `remedy`: in the message of the first case, an alternative to stopping that
        daemon."""
        self.path = path.absolute()
        try:
            make_private(self.path)
            self._lock = open_locked(self.path / LOCK, make=True)
        except BlockingIOError:
            raise ConfigError(_held(self.path, read_record(self.path), remedy)) from None
        except OSError as error:
            raise ConfigError(
                f"node.directory: cannot use {self.path}: {error.strerror}; "
                "choose another with --set node.directory=PATH"
            ) from error

    def read(self) -> NodeRecord | None:
        """The record of the last daemon in this directory; None: this is the first one."""
        return read_record(self.path)

    def write(self, record: NodeRecord) -> None:
        """Replace node.json, then its copy, each atomically."""
        content = json.dumps(asdict(record), indent=1).encode()
        for name in (RECORD, COPY):
            write_private(self.path / name, content)  # It holds a token.

    def close(self) -> None:
        os.close(self._lock)


class RunningRecord:
    """The record of the running daemon; node.json follows each change of it."""

    def __init__(self, directory: NodeDirectory, record: NodeRecord) -> None:
        self.directory = directory
        self.record = record

    def write(self) -> None:
        self.directory.write(self.record)

    def remember_run(self, run: int) -> None:
        """The run is known: its 64 bits."""
        self.record = replace(self.record, run=run)
        self.write()

    def remember_contact(self, address: str) -> None:
        """This node is admitted, and needs no token any more. `address`: where a peer was."""
        if self.record.join != address:
            self.record = replace(self.record, join=address)
            self.write()

    def remember_bus(self, endpoint: str) -> None:
        """Local commands are answered at this ZeroMQ endpoint from now on."""
        self.record = replace(self.record, bus=endpoint)
        self.write()


def in_use(directory: Path) -> bool:
    """Whether a process has locked this node directory."""
    try:
        os.close(open_locked(directory / LOCK))
    except BlockingIOError:
        return True
    except OSError:
        return False  # Without a lock file it is not a node's directory.
    return False


def runs(directory: Path, record: NodeRecord) -> bool:
    """Whether the daemon that wrote this record still runs. Unlike `in_use`, it does not try the
    lock while another daemon starts, which would then find it taken."""
    return Path(f"/proc/{record.pid}").exists() and in_use(directory)


def check_resumable(directory: Path, record: NodeRecord, *, way: bool) -> None:
    """Check that a node can be started again. `way`: an address or token of other nodes is known.
    Raises ConfigError if the node runs, or if it has neither a log nor such an address."""
    from peers.storage import FILE

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
        f"join them as a new one: `lowcomm resume {directory} --join @FILE`"
    )


def is_node(directory: Path) -> bool:
    """Whether a node was started in this directory: node.json or its copy exists."""
    return (directory / RECORD).exists() or (directory / COPY).exists()


def node_directories(directory: Path) -> list[Path]:
    """A node's own directory, or those of all nodes in a run's. Raises ConfigError if it is
    neither."""
    if is_node(directory):
        return [directory]
    found = nodes_below(directory)
    if not found:
        what = "holds no node" if directory.exists() else "does not exist"
        raise ConfigError(
            f"{directory} {what}: give the directory of a run (runs/NAME) or of one of its nodes "
            "(runs/NAME/NODE)"
        )
    return found


def nodes_below(directory: Path) -> list[Path]:
    """The directories of nodes in a run's. Others, which this user may be unable to enter (the
    lost+found of a disk), are passed over."""
    return sorted({path.parent for name in (RECORD, COPY) for path in directory.glob(f"*/{name}")})


def _decoded(path: Path) -> NodeRecord:
    """Read a record. Raises one of _UNREADABLE."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    values.update(command=tuple(values.get("command", ())))
    return NodeRecord(**values)


def _described(error: Exception, directory: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{directory / RECORD} is gone"
    return f"{directory / RECORD} cannot be read: {error}"


def _mending(directory: Path) -> str:
    """Instructions for a node.json that cannot be read; the run can go on in each case."""
    try:
        _decoded(directory / COPY)
    except _UNREADABLE:
        return (
            "the node's id, configuration and command were in it; its log and checkpoints are "
            f"still in {directory}: keep them, put {RECORD} back from a backup, and go on with "
            f"`lowcomm resume {directory}`. If other nodes of the run are left, they can give the "
            "state to another node: `lowcomm token` there, then "
            "`lowcomm peer --join @FILE --set node.directory=PATH` here"
        )
    copy, record = (shlex.quote(str(directory / name)) for name in (COPY, RECORD))
    return f"its copy is whole: put it back with `cp {copy} {record}`, then go on as before"


def _held(directory: Path, record: NodeRecord | None, remedy: str) -> str:
    who = f" ({record.name}, pid {record.pid})" if record is not None else ""
    stop = f" (`kill -INT {record.pid}`)" if record is not None else ""
    return (
        f"node.directory {directory} is in use by a running peer{who}: stop it first{stop}, or "
        f"{remedy}"
    )


def read_record(directory: Path) -> NodeRecord | None:
    """The node.json of a directory; None if it is not a node's directory. Raises ConfigError if
    node.json is damaged, or if only its copy exists."""
    try:
        return _decoded(directory / RECORD)
    except _UNREADABLE as error:
        if isinstance(error, FileNotFoundError) and not (directory / COPY).exists():
            return None
        raise ConfigError(f"{_described(error, directory)}; {_mending(directory)}") from error


def record_of_run(directory: Path) -> NodeRecord | None:
    """The record of a node that has the log of its run; None if there is no such node in this
    directory. Raises ConfigError as `read_record`."""
    from peers.storage import FILE

    record = read_record(directory)
    return record if record is not None and record.run and (directory / FILE).exists() else None


def recorded_config(directory: Path) -> FileConfig:
    """The configuration with which the node of this directory was started. Raises ConfigError."""
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
    """The configured name of the node, or the host's name. Raises ConfigError if it is unusable."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname().split(".")[0]).strip("-")
    name = configured or host[:NAME_CHARS_MAX]
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"node.name {name!r} cannot be used: write 1 to {NAME_CHARS_MAX} letters, digits, - "
            "and _, beginning with a letter or digit"
        )
    return name


def new_peer_id(name: str) -> PeerId:
    """A new peer id: the name and 32 random bits in hex, so that no id is used twice."""
    return PeerId(f"{name}.{secrets.token_hex(4)}")


def exec_time() -> float:
    """Start time of this process in Unix seconds, from the kernel's start time in /proc."""
    stat = Path("/proc/self/stat").read_text(encoding="ascii")
    ticks = int(stat.rpartition(")")[2].split()[19])
    started_s = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started_s
