"""Runs a command, and leaves none of the processes that it started.

`python -m peers.processes.reaper PARENT_PID COMMAND...`. Orphans of the command become children of
this process, whatever sessions they made: it kills all of them when the command has ended, or when
its own parent has. If this process itself is killed, the command dies with it. Must NOT import
anything heavy: it lives as long as the command.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from peers.processes.die_with_parent import CANNOT_RUN, EXIT_CANNOT_RUN, die_with_parent

LAST_WORDS_S = 0.3
"""Seconds for processes that notice the end of the parent by themselves, and print that."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _ParentGone(Exception):  # noqa: N818
    """The parent has ended, or asks this process to end."""


def main(argv: Sequence[str]) -> None:
    """`PARENT_PID COMMAND...`: end with the exit status of the command, or its signal."""
    parent, command = int(argv[0]), list(argv[1:])
    signal.signal(signal.SIGTERM, _end)
    status = signal.SIGTERM.value
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            _end(signal.SIGTERM, None)  # It ended before the call above.
        status = _run(command)
    except _ParentGone:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(LAST_WORDS_S)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_all()
    _end_with(os.waitstatus_to_exitcode(status))


def kill_all() -> None:
    """SIGKILL and reap all descendants of this process, and those that they start meanwhile."""
    while True:
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children_by_parent() -> dict[int, list[int]]:
    """The processes of this machine, by the process that has started or inherited them."""
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # The process has ended.
        # pid (name) state parent ...: the name may hold spaces and brackets.
        parent = int(stat[stat.rindex(b")") + 1 :].split()[1])
        children.setdefault(parent, []).append(int(entry))
    return children


def _run(command: list[str]) -> int:
    """The wait status of the command. Orphans that end before it are reaped, too."""
    reaper, pid = os.getpid(), os.fork()
    if pid == 0:
        _become(command, reaper)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return status


def _become(command: list[str], parent: int) -> None:
    """In the forked process: become the command, which dies with its parent."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent)
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        code = EXIT_CANNOT_RUN
        os.write(2, f"{CANNOT_RUN}{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(code)


def _end_with(code: int) -> None:
    """End as the command did. `code`: negative is a signal."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL and SIGSTOP have no other handler.
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _descendants(pid: int) -> list[int]:
    children = children_by_parent()
    found = children.get(pid, [])
    for child in found:  # It grows meanwhile.
        found.extend(children.get(child, ()))
    return found


def _end(number: int, frame: FrameType | None) -> None:
    raise _ParentGone


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    main(sys.argv[1:])
