"""The command of the peer on each host: `lowcomm peer` with the settings of this host.

Must NOT hold a secret: every user of a host can read the arguments of its processes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lowcomm.config.schema import NodeConfig, is_run_key
from lowcomm.launching.host_side import CONFIG
from lowcomm.launching.hosts_file import HostConfig, Launch
from lowcomm.launching.supervisor import TOKEN
from peers.sockets import format_address, parse_address

FOUNDERS_OWN = ("listen", "advertise")
"""Keys of `[node]` in the run's file that hold for the first host only."""


def peer_arguments(
    launch: Launch,
    host: HostConfig,
    answer: Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    command: Sequence[str] = (),
) -> list[str]:
    """Arguments of `lowcomm`. `answer`: of probe.py; `overrides`: `--set` of the whole launch;
    `command`: the ranks' program, if it is not lowcomm's own."""
    founds = host is launch.hosts.hosts[0]
    directory = launch.node_directory(host)
    where = f"{directory}/{CONFIG}" if founds else f"@{directory}/{TOKEN}"
    arguments = ["peer", where, "--new"] if founds else ["peer", "--join", where]
    settings = [setting for setting in overrides if founds and is_run_key(setting)]
    settings += _shared(launch.node, founds=founds)
    own: dict[str, object] = {"name": host.name, "directory": directory}
    own |= _address(launch, host, answer, founds=founds)
    own |= {"ranks": host.ranks} if host.ranks else {}
    own |= {"device": host.device} if host.device else {}
    settings += [_setting(key, value) for key, value in own.items()]
    for setting in (*settings, *host.set):
        arguments += ["--set", setting]
    return arguments + (["--", *command] if command else [])


def _shared(node: NodeConfig, *, founds: bool) -> list[str]:
    """The settings of `[node]` in the run's file, which hold for all hosts."""
    defaults = asdict(NodeConfig())
    return [
        _setting(key, value)
        for key, value in asdict(node).items()
        if value != defaults[key] and (founds or key not in FOUNDERS_OWN)
    ]


def _address(
    launch: Launch, host: HostConfig, answer: Mapping[str, Any], *, founds: bool
) -> dict[str, object]:
    """`listen` and `advertise` of a node, as far as they have to be said."""
    said: dict[str, object] = {}
    if host.advertise:
        name, port = parse_address(_with_port(host.advertise), key="advertise")
        said["advertise"] = format_address(name, port or host.port)
    if host.iface:
        return {"listen": format_address(str(answer["address"]), host.port), **said}
    if founds and (launch.node.listen or launch.node.advertise) and not host.port:
        return said
    if all(each.is_local for each in launch.hosts.hosts) and not said:
        return {"listen": f"127.0.0.1:{host.port}"} if founds or host.port else {}
    if founds and not said:
        said["advertise"] = format_address(str(answer["reached_at"]), host.port)
    anywhere = "0.0.0.0"  # noqa: S104 (text of a setting)
    return {"listen": f"{anywhere}:{host.port}", **said} if said or host.port else {}


def _with_port(address: str) -> str:
    """HOST:PORT of an address that may lack the port, which is then that of `listen`."""
    return address if address.rpartition(":")[2].isdecimal() else f"{address}:0"


def _setting(key: str, value: object) -> str:
    """`node.KEY=VALUE`, as TOML."""
    return f"node.{key}={json.dumps(value, ensure_ascii=False)}"
