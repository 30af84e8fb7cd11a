"""The supervisor of one peer on its host: `python -m lowcomm.launching.supervisor DIRECTORY`.

It runs the command of DIRECTORY/launch.json, and runs it again within a budget when it fails. On
SIGTERM it lets the peer leave the run, and ends. It outlives the connection that started it; if it
is killed, the peer dies with it.

    launch.json        the command and the budget: written by host_side.py
    token              the join token, for its owner only; absent on the host that founds the run
    supervisor.pid     the supervisor's process id; locked as long as it runs
    supervisor.json    what it does now: a Supervised
    daemon.log         output of the peer and of the supervisor

Must NOT judge a run: an exit status is all that it knows of the peer.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lowcomm.launching.restart_budget import RestartBudget
from peers.processes import Child, dying_with_us, own_module, start_child
from peers.storage import open_locked, write_private

COMMAND, TOKEN, PID, STATE, LOG = (
    "launch.json",
    "token",
    "supervisor.pid",
    "supervisor.json",
    "daemon.log",
)
LEAVE_S = 300.0
"""Seconds from SIGTERM to SIGKILL: a peer that leaves writes its last checkpoint first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """The state of a supervisor, as its file has it."""

    state: Literal["running", "waiting", "ended", "gone"]
    """`waiting`: for the next start; `gone`: the supervisor was killed, or its host restarted."""
    why: str = ""
    """The reason of its state; of the last restart, if the peer runs."""
    code: int | None = None
    """Exit status of the last peer; None before the first one has ended."""
    restarts: int = 0
    """Number of restarts since this supervisor began."""
    peer_pid: int = 0
    since: float = 0.0
    """Time of the last change, in Unix seconds."""
    until: float = 0.0
    """Time of the next start, in Unix seconds; 0: none is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCommand:
    """The content of launch.json."""

    arguments: tuple[str, ...]
    """Arguments of `lowcomm`."""
    restarts: int


def read_state(directory: Path) -> Supervised | None:
    """The state of the supervisor of a node's directory; None if there was none."""
    try:
        raw: dict[str, Any] = json.loads((directory / STATE).read_text(encoding="utf-8"))
        state = Supervised(**raw)
    except (OSError, ValueError, TypeError):
        return None
    if state.state == "ended" or supervises(directory):
        return state
    return replace(state, state="gone", why="its supervisor is gone")


def supervises(directory: Path) -> bool:
    """Whether a supervisor runs in this directory. It does not try the lock while another one
    starts, which would then find it taken."""
    pid = supervisor_pid(directory)
    if not pid or not Path(f"/proc/{pid}").exists():
        return False
    try:
        os.close(open_locked(directory / PID))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def supervisor_pid(directory: Path) -> int:
    """The process id of the last supervisor of this directory; 0: there was none."""
    try:
        return int((directory / PID).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


class Supervisor:
    """Runs one peer until it has ended for good. Use it in the main thread."""

    def __init__(self, directory: Path, command: PeerCommand) -> None:
        self._directory = directory
        self._arguments = command.arguments
        self._budget = RestartBudget(command.restarts)
        self._state = Supervised(state="running")
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Returns the last exit status of the peer."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        why = ""
        while True:
            began = loop.time()
            code = await self._run_once(why)
            delay_s, why = self._budget.after(code, lived_s=loop.time() - began)
            if self._stopping.is_set():
                delay_s, why = None, "it was told to leave"
            if delay_s is None:
                self._note("ended", why, code=code)
                return code
            self._note("waiting", why, code=code, until=time.time() + delay_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()
                    self._note("ended", "it was told to stop before its next start", code=code)
                    return code
            self._state = replace(self._state, restarts=self._state.restarts + 1)

    async def _run_once(self, why: str) -> int:
        """Run the peer to its end, and return its exit status. `why`: the reason of the restart,
        if it is one."""
        command = own_module("lowcomm.cli.main")
        child = start_child(dying_with_us([*command, *self._arguments]), env=os.environ)
        self._note("running", why, pid=child.pid)
        ended = asyncio.ensure_future(child.wait())
        told = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((ended, told), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._let_leave(child)
            return await ended
        finally:
            told.cancel()
            await child.stop()

    async def _let_leave(self, child: Child) -> None:
        os.kill(child.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await child.wait()
        await child.stop()

    def _note(
        self,
        state: Literal["running", "waiting", "ended"],
        why: str,
        *,
        code: int | None = None,
        pid: int = 0,
        until: float = 0.0,
    ) -> None:
        self._state = replace(
            self._state,
            state=state,
            why=why,
            code=self._state.code if code is None else code,
            peer_pid=pid,
            since=time.time(),
            until=until,
        )
        content = json.dumps(asdict(self._state)).encode()
        # The peer outlives a full disk: its supervisor's notes may be lost.
        with contextlib.suppress(OSError):
            write_private(self._directory / STATE, content)
            if why and state != "running":
                print(f"supervisor: {why}", flush=True)  # noqa: T201 (into the log)


def main(directory: Path) -> None:
    """Supervise the peer of this directory, unless another process does."""
    try:
        lock = open_locked(directory / PID, make=True)
    except BlockingIOError:
        return
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    raw: dict[str, Any] = json.loads((directory / COMMAND).read_text(encoding="utf-8"))
    command = PeerCommand(arguments=tuple(raw["arguments"]), restarts=int(raw["restarts"]))

    async def supervise() -> None:
        await Supervisor(directory, command).run()

    asyncio.run(supervise())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
