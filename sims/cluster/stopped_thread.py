"""Stops single threads of other processes, by ptrace. All other threads of the process go on.

So the thread that writes a daemon's log can be made to hang, as on a disk that does not answer.
Needs Linux, and the right to trace the process: root, or a parent process that may trace its
children. Must NOT stop a thread that holds the interpreter lock: the whole process would stop.
"""

import ctypes
import os
import time
from pathlib import Path

from protocols.types import LowcommError

_DETACH, _SEIZE, _INTERRUPT = 17, 0x4206, 0x4207
_WALL = 0x40000000
"""Wait for threads too."""
CANNOT_TRACE = "cannot trace thread"
TRIES = 200
TRY_S = 0.005


def thread_of(pid: int, name: str) -> int:
    """The kernel's number of the thread of this name. Raises LowcommError."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise LowcommError(f"process {pid} has no thread named {name}")


def stop_thread(pid: int, thread: int) -> None:
    """Stop the thread while it is in a system call, where it does not hold the interpreter lock.
    The calling thread must call `resume_thread` later. Raises LowcommError."""
    _ptrace(_SEIZE, thread)
    for _ in range(TRIES):
        _ptrace(_INTERRUPT, thread)
        os.waitpid(thread, _WALL)
        if _is_in_call(pid, thread):
            return
        _ptrace(_DETACH, thread)
        time.sleep(TRY_S)
        _ptrace(_SEIZE, thread)
    resume_thread(thread)
    raise LowcommError(f"thread {thread} was never in a system call")


def resume_thread(thread: int) -> None:
    """Let a stopped thread go on. Raises LowcommError."""
    _ptrace(_DETACH, thread)


def _is_in_call(pid: int, thread: int) -> bool:
    """True for "NUMBER ARGUMENTS...", False for "running" and "-1 STACK PC"."""
    first = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()[0]
    return first.isdigit()


def _ptrace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_void_p(0)
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), zero, zero) == -1:
        code = ctypes.get_errno()
        raise LowcommError(f"{CANNOT_TRACE} {thread}: {os.strerror(code)}")
