"""Starts the nodes of all hosts, and stops them; watch.py shows them in between.

Each step can be repeated: a node that runs is left alone, one that has stopped goes on. Must NOT
keep state of its own: hosts.toml and the hosts have all.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lowcomm.config.schema import is_run_key
from lowcomm.launching import probe
from lowcomm.launching.checks import print_problems, problems_of
from lowcomm.launching.host_side import LISTEN_S, START_S
from lowcomm.launching.hosts_file import HostConfig, Launch
from lowcomm.launching.peer_commands import peer_arguments
from lowcomm.launching.supervisor import LEAVE_S
from lowcomm.launching.transport import HostError, LocalTransport, Transport, ask_host
from lowcomm.reports.timeline import printable
from protocols.types import ConfigError, LowcommError

PROBE_S = 60.0
INSTALL_S = 1800.0
CALL_S = 60.0
"""Seconds for a command on a host, beside those that it waits by itself."""
AT_ONCE = 32
"""Hosts that are asked at the same time."""
TOKEN_HOURS = 24.0
TOKEN_USES_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The options of `lowcomm launch` for the start."""

    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """The ranks' program; empty: the built-in one."""
    install: str = ""
    """The requirement that pip installs on hosts without this lowcomm; empty: nothing."""


class HostConnections:
    """The ways to the hosts, opened when they are needed. Use it as an async context manager."""

    def __init__(self, ssh_config: Path | None = None) -> None:
        """`ssh_config`: a file to use in place of ~/.ssh/config."""
        self._ssh_config = ssh_config
        self._open: dict[str, Transport] = {}

    async def __aenter__(self) -> "HostConnections":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(transport.close() for transport in self._open.values()))

    async def to(self, host: HostConfig) -> Transport:
        """The way to a host. Raises HostError."""
        if host.name not in self._open:
            self._open[host.name] = await self._connect(host)
        return self._open[host.name]

    async def forget(self, host: HostConfig) -> None:
        """Close the way to a host, so that the next use opens a new one."""
        transport = self._open.pop(host.name, None)
        if transport is not None:
            await transport.close()

    async def _connect(self, host: HostConfig) -> Transport:
        if host.is_local:
            return LocalTransport(host.python)
        from lowcomm.launching.ssh_transport import connect

        return await connect(host, self._ssh_config)


async def start_all(
    launch: Launch, options: LaunchOptions, connections: HostConnections, console: Console
) -> dict[str, int] | None:
    """Check all hosts, then start their nodes. Returns for each the bytes that its event log had
    before; None: the run is finished. Raises ConfigError, after a table of the problems, if a host
    is not fit; LowcommError if a node cannot be started."""
    answers = await _checked(launch, options, connections, console)
    first, *others = launch.hosts.hosts
    try:
        token = await _found(launch, first, answers, options, connections)
    except HostError as error:
        raise LowcommError(f"{first.name}: {error}") from error
    if token is None:
        console.print(f"{first.name}: the run is finished", markup=False, highlight=False)
        return None
    _tell_start(console, launch, first)
    limit = asyncio.Semaphore(AT_ONCE)

    async def start_one(host: HostConfig) -> str:
        async with limit:
            try:
                request = _request(launch, host, answers[host.name], options)
                await _start(launch, host, {**request, "token": token}, connections)
            except HostError as error:
                return f"{host.name}: {error}"
        _tell_start(console, launch, host)
        return ""

    failed = [why for why in await asyncio.gather(*map(start_one, others)) if why]
    if failed:
        raise LowcommError(
            "\n".join(failed) + "\nthe other hosts run: mend this, and repeat `lowcomm launch`"
        )
    return {name: int(answer["events_bytes"]) for name, answer in answers.items()}


async def stop_all(launch: Launch, connections: HostConnections, console: Console) -> bool:
    """Let the nodes leave the run one after the other, the one that began it last; returns whether
    all have ended. Each leaves while a majority is there to log it."""
    all_ended = True
    for host in reversed(launch.hosts.hosts):
        directory = launch.node_directory(host)
        try:
            transport = await connections.to(host)
            answer = await ask_host(
                transport, "stop", directory, within_s=LEAVE_S + START_S + CALL_S
            )
        except HostError as error:
            all_ended = False
            text = f"not stopped: {error}"
        else:
            state = answer["state"]
            text = "was not started" if state is None else f"ended: {state['why']}"
        console.print(printable(f"{host.name} {text}"), markup=False, highlight=False)
    return all_ended


async def restart(launch: Launch, host: HostConfig, connections: HostConnections) -> None:
    """Start the supervisor of a host that was restarted, as before. Raises HostError."""
    await _start(launch, host, {}, connections)


async def _checked(
    launch: Launch, options: LaunchOptions, connections: HostConnections, console: Console
) -> dict[str, Mapping[str, Any]]:
    """The answers of all hosts, which have no problem. Raises ConfigError."""
    answers = await _look_at(launch, launch.hosts.hosts, connections)
    own_program = bool(options.command)
    found = problems_of(launch, answers, own_program=own_program, now_s=time.time())
    lacking = {problem.host for problem in found if problem.lacks_lowcomm}
    if options.install and lacking:
        hosts = [host for host in launch.hosts.hosts if host.name in lacking]
        await asyncio.gather(
            *(_install(host, options.install, connections, console) for host in hosts)
        )
        answers |= await _look_at(launch, hosts, connections)
        found = problems_of(launch, answers, own_program=own_program, now_s=time.time())
    if found:
        print_problems(console, found)
    stops = sum(problem.stops for problem in found)
    if stops:
        count = "1 problem" if stops == 1 else f"{stops} problems"
        raise ConfigError(f"{count}, nothing was started: mend this, and repeat the command")
    return {name: answer for name, answer in answers.items() if not isinstance(answer, str)}


async def _look_at(
    launch: Launch, hosts: Sequence[HostConfig], connections: HostConnections
) -> dict[str, Mapping[str, Any] | str]:
    """The answer of each of these hosts, or the reason why there is none."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def look(host: HostConfig) -> Mapping[str, Any] | str:
        question = {
            "directory": launch.node_directory(host),
            "iface": host.iface,
            "port": host.port,
        }
        async with limit:
            try:
                transport = await connections.to(host)
                python = transport.python
                ended = await transport.execute(
                    [python, "-", json.dumps(question)], stdin=_probe_text(), within_s=PROBE_S
                )
            except HostError as error:
                return str(error)
        if ended.code:
            last = ended.err.strip().splitlines()[-1:]
            return f"`{python}` cannot run there (exit status {ended.code}): {''.join(last)}"
        try:
            return {**json.loads(ended.out), "reached_at": transport.address}
        except (ValueError, TypeError):
            return f"`{python}` printed no answer: does its login shell print something?"

    answers = await asyncio.gather(*map(look, hosts))
    return {host.name: answer for host, answer in zip(hosts, answers, strict=True)}


async def _install(
    host: HostConfig, requirement: str, connections: HostConnections, console: Console
) -> None:
    """Install lowcomm there; the checks that follow tell whether it succeeded."""
    console.print(f"{host.name}: installing {requirement}", markup=False, highlight=False)
    try:
        transport = await connections.to(host)
        argv = [transport.python, "-m", "pip", "install", requirement]
        ended = await transport.execute(argv, within_s=INSTALL_S)
    except HostError as error:
        console.print(f"{host.name}: {error}", markup=False, highlight=False)
        return
    if ended.code:
        last = "\n".join(ended.err.strip().splitlines()[-3:])
        text = printable(f"{host.name}: pip ended with {ended.code}: {last}", keep="\n")
        console.print(text, markup=False, highlight=False)


async def _found(
    launch: Launch,
    host: HostConfig,
    answers: Mapping[str, Mapping[str, Any]],
    options: LaunchOptions,
    connections: HostConnections,
) -> str | None:
    """Start the first node, and return a token with which the others join; None: the run is
    finished. Raises HostError."""
    config = launch.config_path.read_text(encoding="utf-8")
    request = {**_request(launch, host, answers[host.name], options), "config": config}
    await _start(launch, host, request, connections)
    uses = max(TOKEN_USES_MIN, 2 * len(launch.hosts.hosts))
    transport = await connections.to(host)
    answer = await ask_host(
        transport,
        "token",
        launch.node_directory(host),
        str(uses),
        str(TOKEN_HOURS),
        within_s=LISTEN_S + CALL_S,
    )
    return None if answer.get("finished") else str(answer["token"])


def _request(
    launch: Launch, host: HostConfig, answer: Mapping[str, Any], options: LaunchOptions
) -> dict[str, object]:
    """The request that starts a node, without its secrets."""
    arguments = peer_arguments(
        launch,
        host,
        answer,
        overrides=[setting for setting in options.overrides if is_run_key(setting)],
        command=options.command,
    )
    return {"arguments": arguments, "restarts": launch.hosts.restarts}


async def _start(
    launch: Launch, host: HostConfig, request: Mapping[str, object], connections: HostConnections
) -> None:
    """Raises HostError."""
    transport = await connections.to(host)
    await ask_host(
        transport,
        "start",
        launch.node_directory(host),
        stdin=json.dumps(request).encode() if request else b"",
        within_s=START_S + CALL_S,
    )


def _tell_start(console: Console, launch: Launch, host: HostConfig) -> None:
    where = "" if host.is_local else f"{host.host}:"
    text = f"{host.name} runs: {where}{launch.node_directory(host)}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _probe_text() -> bytes:
    return Path(probe.__file__).read_bytes()
