"""A handle of one process, which need not be a child of this one.

The handle is a pidfd. Linux before 5.3 has no pidfd_open, and the seccomp profiles of container
runtimes that are older than the call forbid it: there the handle is the process id together with
the start time from `/proc`, and the end of the process is polled. Where a profile forbids only to
signal through a pidfd, the process id is signalled instead. Must NOT reap a process (its parent
does that), or start a thread.
"""

import asyncio
import contextlib
import errno
import os
import select
import signal
from collections.abc import Callable

POLL_S = 0.05
"""Seconds between checks of a process without a pidfd; a check costs 20 microseconds."""
_UNAVAILABLE = (errno.ENOSYS, errno.EPERM)
"""The kernel lacks pidfd_open, or a seccomp filter forbids it: the call itself gives neither."""
_NO_PIDFD = -1


class ProcessHandle:
    """One process, and never a later process with the same id."""

    def __init__(self, pid: int) -> None:
        """Raises OSError: the process has ended and is reaped (ProcessLookupError), or it is in a
        namespace that is not visible here."""
        self.pid = pid
        self._pidfd = _NO_PIDFD
        self._started = 0
        """Start time of the process in clock ticks since boot; 0 where there is a pidfd."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that watches for the end; None before `watch` and after `unwatch`."""
        self._timer: asyncio.TimerHandle | None = None
        """The next check, if the end is polled."""
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno not in _UNAVAILABLE:
                raise
            _, self._started = _state_of(pid)

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` once, in the running loop, when the process has ended; it may be a zombie
        still. At most one watch at a time."""
        assert self._loop is None, "it is watched already"
        self._loop = asyncio.get_running_loop()
        if self._pidfd == _NO_PIDFD:
            self._timer = self._loop.call_later(0, self._look, ended)
        else:
            self._loop.add_reader(self._pidfd, self._tell, ended)

    def unwatch(self) -> None:
        """Call `ended` no more; idempotent."""
        if self._loop is None:
            return
        if self._timer is None:
            self._loop.remove_reader(self._pidfd)
        else:
            self._timer.cancel()
        self._loop = self._timer = None

    def kill(self) -> None:
        """SIGKILL the process; nothing when it has ended. Raises PermissionError."""
        with contextlib.suppress(ProcessLookupError):
            if not self._kill_by_pidfd() and not self._has_ended():
                # The id belongs to another process only if this one ended and was reaped since
                # the look, and the kernel has given out all other ids since.
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Unwatch, and close the pidfd: the last call, or idempotent."""
        self.unwatch()
        if self._pidfd != _NO_PIDFD:
            os.close(self._pidfd)
            self._pidfd = _NO_PIDFD

    def _kill_by_pidfd(self) -> bool:
        """False where there is no pidfd, or a seccomp filter that admits pidfd_open forbids to
        signal through it: such a filter and a process of another user give the same error."""
        if self._pidfd == _NO_PIDFD:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except OSError as error:
            if error.errno not in _UNAVAILABLE:
                raise
            return False
        return True

    def _look(self, ended: Callable[[], None]) -> None:
        assert self._loop is not None
        if self._has_ended():
            self._tell(ended)
        else:
            self._timer = self._loop.call_later(POLL_S, self._look, ended)

    def _tell(self, ended: Callable[[], None]) -> None:
        self.unwatch()
        ended()

    def _has_ended(self) -> bool:
        if self._pidfd != _NO_PIDFD:
            poller = select.poll()  # Unlike select, it takes any number of a descriptor.
            poller.register(self._pidfd, select.POLLIN)
            return bool(poller.poll(0))
        try:
            state, started = _state_of(self.pid)
        except ProcessLookupError:
            return True
        return state in (b"Z", b"X") or started != self._started


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal (SIGSTOP), and not continued yet. False if there
    is no such process."""
    try:
        return _state_of(pid)[0] == b"T"
    except OSError:
        return False


def _state_of(pid: int) -> tuple[bytes, int]:
    """The state letter and the start time (clock ticks since boot) of a process. Raises
    ProcessLookupError."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except FileNotFoundError as error:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
    # pid (name) state parent ... starttime: the name may hold spaces and brackets.
    fields = stat[stat.rindex(b")") + 1 :].split()
    return fields[0], int(fields[19])
