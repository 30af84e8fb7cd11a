"""Reads hosts.toml: the hosts of a run, in the order of their start.

    run = "run.toml"
    hosts = [
      "gpu1 iface=eth1",
      "user@gpu2 ranks=8 node.micro_batch=4",
      {host = "local", name = "here", port = 4711},
    ]

Must NOT connect to a host, nor look at its files.
"""

import ipaddress
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from lowcomm.config.schema import NodeConfig, RunConfig, load_config
from lowcomm.startup.identity import node_name
from lowcomm.validation import check_values, shown, validate
from protocols.types import ConfigError

LOCAL = "local"
"""The host that is this machine: its node is a local process."""
HOSTS_MAX = 1000
PORT_MAX = 65535
SETTING = "node."
"""Begins a word of a host's line that is a setting of its node."""
_WORD = re.compile(r"([a-z_.]+)=(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """One host, and what its node has of its own."""

    host: str
    """`local`, or HOST or USER@HOST as for ssh, which ~/.ssh/config may explain."""
    name: str = ""
    """The node's name; empty: the host's."""
    ranks: int = 0
    """`node.ranks`; 0: as in the run's file."""
    device: Literal["", "cpu", "cuda"] = ""
    """`node.device`; empty: as in the run's file."""
    iface: str = ""
    """The network interface with the IPv4 address at which the node listens, as in eth1."""
    advertise: str = ""
    """HOST or HOST:PORT that other nodes dial; empty: the address of `iface`, or that at which ssh
    reaches the host."""
    port: int = 0
    """The TCP port at which the node listens; 0: a free one."""
    ssh_port: int = 0
    """0: as in ~/.ssh/config, or 22."""
    python: str = ""
    """The Python that has lowcomm; empty: that of the file."""
    set: tuple[str, ...] = ()
    """More settings of this node, as node.KEY=VALUE."""

    def __post_init__(self) -> None:
        check_values("host", self, not_negative=("ranks", "port", "ssh_port"))
        if not self.host or self.host.startswith("-") or " " in self.host:
            raise ConfigError(f"host must be `local`, HOST or USER@HOST, got {shown(self.host)}")
        for key in ("port", "ssh_port"):
            if getattr(self, key) > PORT_MAX:
                raise ConfigError(f"{key} must be at most {PORT_MAX}, got {getattr(self, key)}")
        for setting in self.set:
            if not setting.startswith(SETTING) or "=" not in setting:
                raise ConfigError(f"set: write node.KEY=VALUE, got {shown(setting)}")

    @property
    def is_local(self) -> bool:
        return self.host == LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsFile:
    """The content of hosts.toml. Paths of this machine are taken from the file's folder."""

    hosts: tuple[HostConfig, ...]
    """The first one founds the run."""
    run: str = "run.toml"
    """The run's configuration, on this machine."""
    directory: str = ""
    """The run's directory on each host, from the home directory (a local one: from this file's
    folder) if it is relative; empty: runs/NAME, by the run's name."""
    python: str = "python3"
    """The Python of hosts that are reached by ssh. Local processes have this command's own."""
    restarts: int = 10
    """A peer that fails is started again so many times in a row."""

    def __post_init__(self) -> None:
        check_values("hosts", self, not_negative=("restarts",))


@dataclass(frozen=True, slots=True)
class Launch:
    """What `lowcomm launch` starts."""

    file: Path
    hosts: HostsFile
    """With the names and Pythons of all hosts filled in."""
    config_path: Path
    run: RunConfig
    node: NodeConfig
    """What all nodes have, by the run's file."""
    directory: str
    """The run's directory on each host."""

    def node_directory(self, host: HostConfig) -> str:
        """The node's directory there: an absolute path on this machine, else from the home."""
        if host.is_local:
            place = self.file.absolute().parent / Path(self.directory).expanduser()
            return str(place / host.name)
        return f"{self.directory.removeprefix('~/')}/{host.name}"


def read_launch(file: Path, overrides: Sequence[str] = ()) -> Launch:
    """Read hosts.toml and the run's configuration. Raises ConfigError, with a line for each host
    that is wrong."""
    hosts = read_hosts(file)
    config_path = file.parent / hosts.run
    config = load_config(config_path, overrides)
    if config.run is None:
        raise ConfigError(f"{config_path} has no [run], which says what to train")
    for key in ("name", "directory"):
        if getattr(config.node, key):
            raise ConfigError(
                f"{config_path}: node.{key} would be the same on all hosts: leave it out"
            )
    directory = hosts.directory.rstrip("/") or f"runs/{config.run.name}"
    return Launch(file, hosts, config_path, config.run, config.node, directory)


def read_hosts(file: Path) -> HostsFile:
    """Read hosts.toml alone. Raises ConfigError."""
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    given: object = raw.pop("hosts", ())
    if isinstance(given, str):
        given = [line for line in given.splitlines() if line.split("#")[0].strip()]
    entries = cast(list[object], given) if isinstance(given, list) else []
    if not 1 <= len(entries) <= HOSTS_MAX:
        raise ConfigError(
            f'{file}: hosts must be a list of 1 to {HOSTS_MAX} hosts, as in hosts = ["gpu1", '
            '"user@gpu2 ranks=8 iface=eth1"]'
        )
    hosts = cast(HostsFile, validate(HostsFile, {**raw, "hosts": ()}, where=str(file)))
    found, wrong = list[HostConfig](), list[str]()
    for number, entry in enumerate(entries, 1):
        try:
            found.append(_read_host(entry, hosts, where=f"{file}: host {number}"))
        except ConfigError as error:
            wrong.append(str(error))
    wrong += [] if wrong else _equal_names(found, file)
    if wrong:
        raise ConfigError("\n".join(wrong))
    return replace(hosts, hosts=tuple(found))


def _read_host(entry: object, file: HostsFile, *, where: str) -> HostConfig:
    table = entry
    if isinstance(entry, str):
        table = _read_line(entry, where=where)
    elif not isinstance(entry, dict):
        raise ConfigError(f"{where}: write a line or a table, got {shown(entry)}")
    host = cast(HostConfig, validate(HostConfig, table, where=where))
    try:
        name = node_name(host.name or _name_of(host.host))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return replace(host, name=name, python=host.python or ("" if host.is_local else file.python))


def _read_line(line: str, *, where: str) -> Mapping[str, Any]:
    """The table that a line such as `user@gpu2 ranks=8 iface=eth1` stands for."""
    try:
        first, *words = shlex.split(line, comments=True)
    except ValueError:
        raise ConfigError(f"{where}: write HOST KEY=VALUE ..., got {shown(line)}") from None
    table: dict[str, Any] = {"host": first}
    settings: list[str] = []
    types = {field.name: field.type for field in fields(HostConfig)}
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            raise ConfigError(f"{where}: {shown(word)} is no KEY=VALUE")
        key, value = match.groups()
        if key.startswith(SETTING):
            settings.append(word)
        elif key in table:
            raise ConfigError(f"{where}: {key} is there twice")
        elif key == "set":
            settings.append(value)
        else:
            table[key] = int(value) if types.get(key) is int and value.isdecimal() else value
    return {**table, "set": settings}


def _name_of(host: str) -> str:
    """A name of a node from the name or address of its host."""
    place = host.rpartition("@")[2]
    try:
        ipaddress.ip_address(place)
    except ValueError:
        place = place.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_]+", "-", place).strip("-")


def _equal_names(hosts: Sequence[HostConfig], file: Path) -> list[str]:
    """One sentence for each host that has the name of an earlier one."""
    seen: dict[str, int] = {}
    wrong: list[str] = []
    for number, host in enumerate(hosts, 1):
        if host.name in seen:
            wrong.append(
                f"{file}: hosts {seen[host.name]} and {number} are both named {host.name}: give "
                "one a name=NAME of its own"
            )
        seen.setdefault(host.name, number)
    return wrong
