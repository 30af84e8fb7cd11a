"""Runs a command in a network namespace: `python enter.py /proc/PID/fd/FD COMMAND...`.

Started as a file, without site-packages, so that it costs little; imports no other module of this
project. The command replaces this process, which keeps its parent, its id and its death signal.
Must NOT make or change a namespace.
"""

import ctypes
import os
import sys

CANNOT_RUN = 127
_CLONE_NEWNET = 0x40000000


def main(argv: list[str]) -> None:
    """Enter the namespace, and become the command."""
    try:
        namespace = os.open(argv[0], os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        sys.exit(f"the emulated network of {argv[0]} is gone: the process that made it has ended")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        sys.exit(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")
    try:
        os.execvp(argv[1], argv[1:])  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[1]}: {error.strerror}\n")
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
