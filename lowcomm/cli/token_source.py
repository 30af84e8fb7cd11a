"""Where a command gets its join token: `--join @FILE`, `--join @-` or LOWCOMM_TOKEN.

A token lets its holder into the run, and every user of a machine can read the arguments of all its
processes. Must NOT decode a token.
"""

import os
import stat
import sys
from pathlib import Path

from peers.processes import TOKEN_VARIABLE
from protocols.types import ConfigError

EXPOSED = (
    "warning: every user of this machine can read the arguments of a process, and so this token: "
    f"use --join @FILE, --join @- (standard input) or the environment variable {TOKEN_VARIABLE}"
)


def take_token(given: str) -> str:
    """The token that the option `--join` names; without one, that of the environment; "": neither.

    The variable is removed from this process's environment: its children need no token. Raises
    ConfigError if a file cannot be read or is empty.
    """
    from_environment = os.environ.pop(TOKEN_VARIABLE, "").strip()
    if not given:
        return from_environment
    if not given.startswith("@"):
        return given
    return _first_word(given[1:])


def warn_if_exposed(given: str) -> None:
    """Tell the user if the option holds the token itself."""
    if given and not given.startswith("@"):
        print(f"lowcomm: {EXPOSED}", file=sys.stderr)  # noqa: T201


def _first_word(name: str) -> str:
    """The word in a file; "-": in the standard input. A shell leaves "~" after "@" as it is."""
    try:
        text = sys.stdin.read() if name == "-" else _read_file(Path(os.path.expanduser(name)))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"--join @{name} cannot be read: {reason}") from None
    if not text.strip():
        raise ConfigError(f"--join @{name} is empty: `lowcomm token DIRECTORY` prints a token")
    return text.strip()


def _read_file(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
            print(  # noqa: T201
                f"lowcomm: warning: other users of this machine can read {path}: "
                f"`chmod 600 {path}`",
                file=sys.stderr,
            )
        return file.read()
