"""Ties a process to the life of its parent.

`python -m peers.processes.die_with_parent PARENT_PID COMMAND...` runs COMMAND so that it dies with
its parent. Every daemon of a local cluster starts through this, so it must NOT import anything
heavy.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

EXIT_CANNOT_RUN = 127
CANNOT_RUN = "cannot run "
"""First words on stderr, with the exit status NOT_RUN, if COMMAND could not be started."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent_pid: int) -> None:
    """Have the kernel SIGKILL this process when the thread that forked it ends.

    Call it first in a child. A stopped process cannot watch a socket, but it can be killed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != expected_parent_pid:
        # It died before the call above, so no process reads our exit status.
        os.kill(os.getpid(), signal.SIGKILL)


def main(argv: Sequence[str]) -> None:
    """`PARENT_PID COMMAND...`: become COMMAND, which keeps the death signal."""
    die_with_parent(int(argv[0]))
    try:
        os.execvp(argv[1], list(argv[1:]))  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{CANNOT_RUN}{argv[1]}: {error.strerror}\n")
        sys.exit(EXIT_CANNOT_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
