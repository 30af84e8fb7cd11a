"""The live view of all hosts: each host prints its state each second, and this shows all of them.

A host that was restarted is found without its supervisor, and gets it again. Must NOT end a node:
without this view all of them go on.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from rich.console import Console

from lowcomm.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED
from lowcomm.launching.hosts_file import HostConfig, Launch
from lowcomm.launching.launch import HostConnections, restart, stop_all
from lowcomm.launching.transport import HOST_SIDE, HostError
from lowcomm.reports.events import Event, Note
from lowcomm.reports.live_view import LiveView
from lowcomm.reports.timeline import EventError, decode, printable

LOOK_S = 0.25
AGAIN_S, AGAIN_MAX_S = 2.0, 60.0
"""Seconds until a host is tried again, first and at most."""
HOST_RESTARTS_MAX = 10
"""A supervisor that is gone is started again so many times in a row."""
QUESTION = "detach (the nodes go on), stop (they leave the run), or continue? [d/s/c] "
Choice = Literal["detach", "stop", "continue", "ended"]


@dataclass(slots=True)
class SeenHost:
    """The newest state of one host."""

    at: int
    """Bytes of its event log that were read; -1: begin with events from now on."""
    report: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The last line of `host_side.py watch`; empty: none yet."""
    problem: str = ""
    """The reason why it cannot be watched now."""
    told: str = ""
    """The last change of its supervisor that was shown."""
    restarts: int = 0
    """Restarts of its supervisor since it was last seen in order."""

    @property
    def supervisor(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], self.report.get("supervisor") or {})

    @property
    def has_ended(self) -> bool:
        return not self.problem and self.supervisor.get("state") == "ended"


class HostWatch:
    """Watches all hosts of a launch, in one task for each."""

    def __init__(
        self, launch: Launch, connections: HostConnections, *, since: Mapping[str, int]
    ) -> None:
        """`since`: the byte of its event log from which on a host is shown; from now on if it is
        missing."""
        self.launch = launch
        self._connections = connections
        self._events: list[Event] = []
        self.hosts = {host.name: SeenHost(since.get(host.name, -1)) for host in launch.hosts.hosts}

    @property
    def has_ended(self) -> bool:
        return all(seen.has_ended for seen in self.hosts.values())

    def take_events(self) -> list[Event]:
        """The events since the last call, by time."""
        events, self._events = self._events, []
        return sorted(events, key=lambda event: event.t)

    def statuses(self) -> list[Mapping[str, Any]]:
        """For each node its daemon's status, or the state that its host tells. A node that has no
        id yet has none."""
        found: list[Mapping[str, Any]] = []
        for name, seen in self.hosts.items():
            status = seen.report.get("status")
            if status and not seen.problem:
                found.append(status)
            elif seen.report.get("peer"):
                state, reason = _state_of(seen)
                found.append(
                    {"peer": seen.report["peer"], "name": name, "state": state, "reason": reason}
                )
        return found

    async def follow(self, host: HostConfig) -> None:
        """Read the reports of a host for ever."""
        seen, delay_s = self.hosts[host.name], AGAIN_S
        while True:
            try:
                if await self._read(host, seen):
                    delay_s = AGAIN_S
                if seen.supervisor.get("state") == "gone":
                    await self._restart(host, seen)
            except HostError as error:
                seen.problem = str(error)
                await self._connections.forget(host)
            self._tell_change(host.name, seen)
            await asyncio.sleep(delay_s)
            delay_s = min(AGAIN_MAX_S, 2 * delay_s)

    async def _read(self, host: HostConfig, seen: SeenHost) -> bool:
        """Read reports until the host prints no more, or its supervisor is gone; returns whether
        there was one. Raises HostError."""
        transport = await self._connections.to(host)
        directory = self.launch.node_directory(host)
        argv = [*transport.module(HOST_SIDE), "watch", directory, str(seen.at)]
        some = False
        async with aclosing(transport.lines(argv)) as lines:
            async for line in lines:
                self._take_report(seen, line)
                some = True
                self._tell_change(host.name, seen)
                if seen.supervisor.get("state") == "gone":
                    return True
        if not some:
            raise HostError("it prints no report")
        return some

    def _take_report(self, seen: SeenHost, line: bytes) -> None:
        """Raises HostError if this is no report."""
        try:
            report: dict[str, Any] = json.loads(line)
            seen.at, lines = int(report["at"]), cast(list[str], report.pop("events"))
        except (ValueError, TypeError, KeyError):
            raise HostError("it prints no report: has it another version of lowcomm?") from None
        seen.report, seen.problem = report, str(report.get("problem", ""))
        for text in lines:
            with contextlib.suppress(EventError):
                event = decode(text.encode())
                self._events += [] if event is None else [event]
        if seen.supervisor.get("state") == "running":
            seen.restarts = 0

    async def _restart(self, host: HostConfig, seen: SeenHost) -> None:
        if seen.restarts >= HOST_RESTARTS_MAX:
            raise HostError(f"its supervisor was started {seen.restarts} times, and is gone again")
        seen.restarts += 1
        await restart(self.launch, host, self._connections)

    def _tell_change(self, name: str, seen: SeenHost) -> None:
        """Show a change of the supervisor's state, or that the host cannot be watched."""
        _, why = _state_of(seen)
        if why != seen.told:
            seen.told = why
            if why:
                note = Note(t=time.time(), peer="", name=name, topic=name, text=printable(why))
                self._events.append(note)


async def show(
    launch: Launch, connections: HostConnections, console: Console, *, since: Mapping[str, int]
) -> int:
    """Show the hosts until all have ended, or the user chooses on Ctrl+C; returns the exit status.
    Without a terminal to ask at, Ctrl+C detaches; so does SIGTERM. `since`: as in HostWatch."""
    watch = HostWatch(launch, connections, since=since)
    choice = await _watched(watch, launch, console)
    if choice == "ended":
        return print_ends(launch, watch.hosts, console)
    if choice == "stop":
        return 0 if await stop_all(launch, connections, console) else EXIT_FAILED
    file = launch.file
    text = f"the nodes go on: `lowcomm launch --attach {file}` shows, `lowcomm stop {file}` ends"
    console.print(f"{text} them", markup=False, highlight=False, soft_wrap=True)
    return 0


def print_ends(launch: Launch, hosts: Mapping[str, SeenHost], console: Console) -> int:
    """Print how each node has ended; returns the exit status: 0 if all of them finished
    the run, 143 if they left it."""
    for host in launch.hosts.hosts:
        state = hosts[host.name].supervisor
        text = printable(f"{host.name} has ended with {state.get('code')}: {state.get('why')}")
        console.print(text, markup=False, highlight=False)
    codes = {seen.supervisor.get("code") for seen in hosts.values()}
    if not codes <= {0, EXIT_INTERRUPTED, EXIT_TERMINATED}:
        return EXIT_FAILED
    return 0 if codes == {0} else EXIT_TERMINATED


async def _watched(watch: HostWatch, launch: Launch, console: Console) -> Choice:
    """Show the hosts until the user has chosen, or all have ended."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    tasks = [asyncio.ensure_future(watch.follow(host)) for host in launch.hosts.hosts]
    view = LiveView(console, launch.run.name)
    try:
        while True:
            choice = await _show(watch, view, signals, tasks)
            if choice == "continue":
                choice = await _ask_user(console, signals)
            if choice != "continue":
                return choice
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _show(
    watch: HostWatch,
    view: LiveView,
    signals: "asyncio.Queue[int]",
    tasks: "Sequence[asyncio.Future[None]]",
) -> Choice:
    """Show the hosts until all have ended or a signal comes; SIGINT: "continue", which is to be
    asked."""
    with view:
        while True:
            for task in tasks:
                if task.done():
                    task.result()  # It only ends by an error of ours.
            view.update(watch.statuses(), watch.take_events())
            if watch.has_ended:
                return "ended"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    number = await signals.get()
                    return "continue" if number == signal.SIGINT else "detach"


async def _ask_user(console: Console, signals: "asyncio.Queue[int]") -> Choice:
    """Ask what Ctrl+C was to mean. A second one detaches."""
    if not (console.is_terminal and sys.stdin.isatty()):
        return "detach"
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()
    loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
    console.print(f"\n{QUESTION}", markup=False, highlight=False, end="")
    answered = asyncio.ensure_future(lines.get())
    signalled = asyncio.ensure_future(signals.get())
    try:
        await asyncio.wait((answered, signalled), return_when=asyncio.FIRST_COMPLETED)
        return chosen(answered.result()) if answered.done() else "detach"
    finally:
        answered.cancel()
        signalled.cancel()
        loop.remove_reader(sys.stdin)


def chosen(line: str) -> Choice:
    """The meaning of the user's answer; the end of the input detaches."""
    word = line.strip().lower()
    if not line or word in ("d", "detach"):
        return "detach"
    return "stop" if word in ("s", "stop") else "continue"


def _state_of(seen: SeenHost) -> tuple[str, str]:
    """(state of a node, as its host tells it; the reason, or "" if it is in order)."""
    if seen.problem:
        return "unreachable", seen.problem
    if not seen.report:
        return "unknown", ""
    state = seen.supervisor
    if not state:
        return "unknown", "it was not started: repeat `lowcomm launch`"
    name = {"running": "starting", "waiting": "restarting"}.get(state["state"], state["state"])
    return str(name), str(state["why"])
