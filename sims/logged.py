"""Runs a command with its output in a file: `python -m sims.logged FILE COMMAND...`.

The command replaces this process, so that its parent, its id and its death signal stay. Only the
file's owner can read it.
"""

import os
import sys

STDOUT, STDERR = 1, 2


def main() -> None:
    """Open the file, point stdout and stderr to it, become the command."""
    path, *command = sys.argv[1:]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.dup2(log, STDOUT)
    os.dup2(log, STDERR)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
