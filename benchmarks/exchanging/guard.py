"""Runs a command, and ends with it; when our own parent ends first, all processes of our group end.

`python -m benchmarks.exchanging.guard PARENT_PID COMMAND...`, in a session of its own. A death
signal alone would reach the command, and not what it has started. Must NOT outlive its parent.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from peers.processes.exit_status import shell_status

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """The exit status of the command, as in a shell."""
    signal.signal(signal.SIGTERM, _end_all)
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        return 1
    if os.getppid() != int(argv[0]):
        return 1  # It ended before the call above.
    with subprocess.Popen(argv[1:], stdin=subprocess.DEVNULL) as command:
        code = command.wait()
    return shell_status(code)


def _end_all(number: int, frame: object) -> None:
    del number, frame
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
