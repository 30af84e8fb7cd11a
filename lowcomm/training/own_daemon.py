"""Starts the node's daemon from the training program, as its child.

The daemon is `lowcomm peer` in a session of its own, so that Ctrl+C reaches the program alone. It
leaves the run when the program has ended, however that happens. Must NOT import torch, nor decide
whether a configuration or a token is valid: the daemon does.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lowcomm.exit_codes import EXIT_CONFIG, EXIT_FAILED, EXIT_REFUSED
from peers.processes import HANDOVER, TOKEN_VARIABLE, own_module, shell_status
from protocols.types import ConfigError, LowcommError, RefusedError

if TYPE_CHECKING:
    from lowcomm.training.launched_ranks import LaunchedRanks

ANSWER_TIMEOUT_S = 120.0
"""Seconds until the daemon has opened its sockets: it takes one, and more on a busy machine."""
LEAVE_TIMEOUT_S = 300.0
"""Seconds for the end of the daemon, which writes its last checkpoint first."""
OWN_VARIABLES = ("LOWCOMM_SOCKET", "LOWCOMM_ATTEMPT")
LAUNCHER_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)
"""A launcher sets them, and has its own values."""


class OwnDaemon:
    """The daemon of this program. Made by `start_daemon`."""

    def __init__(
        self, popen: "subprocess.Popen[bytes]", answer: int, *, launched: bool = False
    ) -> None:
        self._popen = popen
        self._answer = answer
        self._launched = launched

    def environment(self) -> dict[str, str]:
        """The variables with which the ranks attach. Raises ConfigError, RefusedError or
        LowcommError with the daemon's reason if there is no daemon."""
        with open(self._answer, "rb") as pipe:
            if not select.select([pipe], [], [], ANSWER_TIMEOUT_S)[0]:
                self._popen.kill()
                raise LowcommError(
                    f"the node's daemon has not answered within {ANSWER_TIMEOUT_S:g} s"
                )
            line = pipe.readline()
        if not line:
            raise LowcommError(f"the node's daemon has ended (code {self.exit_code()}): see above")
        content = cast("dict[str, Any]", json.loads(line))
        if "error" in content:
            kinds = {EXIT_CONFIG: ConfigError, EXIT_REFUSED: RefusedError}
            self.exit_code()
            raise kinds.get(content["code"], LowcommError)(content["error"])
        given: dict[str, str] = content["environment"]
        more = () if self._launched else LAUNCHER_VARIABLES
        return {name: given[name] for name in (*OWN_VARIABLES, *more)}

    def exit_code(self) -> int:
        """Wait for its end; returns its exit status, as a shell has it."""
        try:
            return shell_status(self._popen.wait(LEAVE_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            return EXIT_FAILED


def start_daemon(
    run: str | Path | None,
    *,
    join: str,
    overrides: Sequence[str],
    launched: "LaunchedRanks | None" = None,
) -> OwnDaemon:
    """Start the daemon. `run`, `join`, `overrides`: as of `attach`. `launched`: all ranks, if a
    launcher started this process as the first of them. Raises LowcommError."""
    of_environment = os.environ.pop(TOKEN_VARIABLE, "")  # Children need none, used or not.
    join, environment = join or of_environment, dict(os.environ)
    arguments = ["peer", *([str(run)] if run is not None else [])]
    if join.startswith("@"):
        arguments += ["--join", join]
    arguments += [] if join else ["--new"]
    for override in overrides:
        arguments += ["--set", override]
    if join and not join.startswith("@"):
        environment[TOKEN_VARIABLE] = join
    program = launched.command if launched is not None and launched.command else _own_command()
    argv = [*own_module("lowcomm.cli.main"), *arguments, "--", *program]
    return _start(argv, environment, launched=launched)


def _start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    launched: "LaunchedRanks | None" = None,
) -> OwnDaemon:
    reading, writing = os.pipe()
    ranks, launcher = (launched.ranks, launched.launcher) if launched is not None else (1, 0)
    handover = {**environment, HANDOVER: f"{writing}:{os.getpid()}:{ranks}:{launcher}"}
    try:
        popen = subprocess.Popen(
            argv,
            env=handover,
            pass_fds=(writing,),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        os.close(reading)
        raise LowcommError(f"cannot start the node's daemon: {error}") from error
    finally:
        os.close(writing)
    return OwnDaemon(popen, reading, launched=launched is not None)


def _own_command() -> list[str]:
    """The command line of this process, with which `lowcomm resume` starts it again."""
    return [sys.executable, *sys.orig_argv[1:]]
