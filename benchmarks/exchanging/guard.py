"""Runs a command, and ends with it; kills all processes of the group if the parent ends first.

`python -m benchmarks.exchanging.guard PARENT_PID COMMAND...`, in a session of its own. A death
signal to the command alone would not reach the processes that it started. Must NOT outlive its
parent.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from peers.processes import shell_status

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Run the command, and return its exit status as a shell would."""
    signal.signal(signal.SIGTERM, _end_all)
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        return 1
    if os.getppid() != int(argv[0]):
        return 1  # The parent ended before the call above.
    with subprocess.Popen(argv[1:], stdin=subprocess.DEVNULL) as command:
        code = command.wait()
    return shell_status(code)


def _end_all(number: int, frame: object) -> None:
    del number, frame
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
