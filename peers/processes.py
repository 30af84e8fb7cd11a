"""Child processes that never outlive their parent, and never leave a zombie.

A child runs in its own session, so that it is killed together with what it started, and is
watched through a pidfd: no SIGCHLD handler and no child watcher of asyncio. Must NOT know what
the children are for.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

_PLACE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_RUN = (
    "import runpy, sys; place = sys.argv.pop(1); place in sys.path or sys.path.insert(0, place); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""The path already has our place where lowcomm is installed, and not where it runs unpacked."""
KILL_TIMEOUT_S = 10.0
"""A SIGKILLed process that is not gone after this long is stuck in the kernel."""


class Child:
    """A process of ours and its session; made by `start_child`."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.pid = popen.pid
        self.returncode: int | None = None
        """As of subprocess: negative is a signal; None while it runs."""
        self._popen = popen
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(popen.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
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
            # Its id cannot have been given to others: we have not reaped it yet.
            kill_group(self.pid)

    def _reap(self) -> None:
        if self.returncode is not None:
            return
        self.kill()  # What it started and did not end goes with it.
        self.returncode = self._popen.wait(KILL_TIMEOUT_S)
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
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
    return [*own_module("peers.tether", python=python), str(os.getpid()), *argv]


def kill_group(leader_pid: int) -> None:
    """SIGKILL a session's first process and its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader_pid, signal.SIGKILL)  # It may not have made its own group yet.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader_pid, signal.SIGKILL)


def kill_descendants(pid: int) -> list[int]:
    """SIGKILL everything that `pid` started, and what that started, in whatever session.

    `pid` itself is left stopped, to be killed by its parent. Each process is stopped before its
    children are listed, so that it does not make new ones meanwhile. Returns a pidfd of each
    killed process for `wait_ended`.
    """
    found = [pid]
    new = [pid]
    while new:
        for process in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        children = _children_by_parent()
        new = [child for parent in found for child in children.get(parent, ())]
        new = [child for child in new if child not in found]
        found += new
    pidfds: list[int] = []
    for process in found[1:]:
        with contextlib.suppress(ProcessLookupError):
            pidfds.append(os.pidfd_open(process))
            signal.pidfd_send_signal(pidfds[-1], signal.SIGKILL)
    return pidfds


async def wait_ended(pidfds: Sequence[int]) -> None:
    """Wait until these SIGKILLed processes, not our children, have ended; close the pidfds.

    Raises TimeoutError when one is stuck.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(KILL_TIMEOUT_S):
            for pidfd in pidfds:
                ended = asyncio.Event()
                loop.add_reader(pidfd, ended.set)
                try:
                    await ended.wait()
                finally:
                    loop.remove_reader(pidfd)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # It has ended meanwhile.
        # pid (name) state parent ...: the name may hold spaces and brackets.
        parent = int(stat[stat.rindex(b")") + 1 :].split()[1])
        children.setdefault(parent, []).append(int(entry))
    return children
