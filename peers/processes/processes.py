"""Child processes that never outlive their parent, and never leave a zombie.

A child runs in its own session, so that it is killed together with what it started, and is watched
through a handle (process_handles.py): no SIGCHLD handler and no child watcher of asyncio, whatever
the loop. Must NOT know what the children are for.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from peers.processes.process_handles import ProcessHandle
from peers.processes.reaper import children_by_parent

_PLACE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_RUN = (
    "import runpy, sys; place = sys.argv.pop(1); place in sys.path or sys.path.insert(0, place); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""The path already has our place where lowcomm is installed, and not where it runs unpacked."""
KILL_TIMEOUT_S = 10.0
"""A SIGKILLed process that is not gone after this long is stuck in the kernel."""


class Child:
    """A child process with its session; made by `start_child`."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.pid = popen.pid
        self.returncode: int | None = None
        """Exit status as in subprocess: negative for a signal; None while it runs."""
        self._popen = popen
        self._ended = asyncio.Event()
        self._handle = ProcessHandle(popen.pid)
        self._handle.watch(self._reap)

    async def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def stop(self) -> int:
        """SIGKILL its session and reap it; idempotent. Raises TimeoutError when it is stuck.

        If cancelled, it blocks for the moment that the rest takes, so that nothing is left.
        """
        self.kill()
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                return await self.wait()
        except asyncio.CancelledError:
            self._reap()
            raise

    def kill(self) -> None:
        """SIGKILL it and its process group; nothing when it has ended."""
        if self.returncode is None:
            # Its id cannot be reused: it is not reaped yet.
            kill_group(self.pid)

    def _reap(self) -> None:
        if self.returncode is not None:
            return
        self.kill()  # Kill the processes that it started and left.
        self.returncode = self._popen.wait(KILL_TIMEOUT_S)
        self._handle.close()
        self._ended.set()


def start_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    stderr: int | None = None,
) -> Child:
    """Start `argv` in its own session, with our stdout, our stderr or this descriptor, no stdin.

    Call it in the main thread: a death signal follows the thread that forked. Raises OSError.
    """
    popen = subprocess.Popen(
        argv,
        env=env,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        return Child(popen)
    except OSError:
        popen.kill()
        popen.wait()
        raise


def own_module(module: str, *, python: str = sys.executable) -> list[str]:
    """The command that runs a module of this distribution, as `python -m` does, but never one of
    the same name in the working directory; nor does it import what else lies there."""
    return [python, "-P", "-c", _RUN, _PLACE, module]


def dying_with_us(argv: Sequence[str], *, python: str = sys.executable) -> list[str]:
    """The command that runs `argv` so that it dies with this process."""
    return [*own_module("peers.processes.die_with_parent", python=python), str(os.getpid()), *argv]


def leaving_nothing(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` so that it and all that it starts die with this process, or with
    each other."""
    return [*own_module("peers.processes.reaper"), str(os.getpid()), *argv]


def kill_group(leader_pid: int) -> None:
    """SIGKILL a session's first process and its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader_pid, signal.SIGKILL)  # It may not have made its own group yet.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader_pid, signal.SIGKILL)


def kill_descendants(pid: int) -> list[ProcessHandle]:
    """SIGKILL everything that `pid` started, and what that started, in whatever session.

    Each process is stopped before its children are listed, so that it does not make new ones
    meanwhile; not `pid` itself, which would stay stopped if this process were killed just then.
    Returns a handle of each killed process for `wait_ended`.
    """
    found: list[int] = []
    while True:
        children = children_by_parent()
        listed = [child for parent in (pid, *found) for child in children.get(parent, ())]
        new = [child for child in listed if child not in found]
        if not new:
            break
        for process in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        found += new
    killed: list[ProcessHandle] = []
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            killed.append(ProcessHandle(process))
            killed[-1].kill()
    return killed


async def wait_ended(killed: Sequence[ProcessHandle]) -> None:
    """Wait until these SIGKILLed processes, not our children, have ended; close the handles.

    Raises TimeoutError when one is stuck.
    """
    try:
        async with asyncio.timeout(KILL_TIMEOUT_S):
            for handle in killed:
                ended = asyncio.Event()
                handle.watch(ended.set)
                await ended.wait()
    finally:
        for handle in killed:
            handle.close()
