"""The program that has started its node's daemon, and is the daemon's only rank.

The daemon answers it once, with a line of JSON through an inherited pipe: the environment in which
the rank attaches, or the error for which there is no daemon. Must NOT end the program, nor import
anything slow: the command line imports this.
"""

import contextlib
import json
import os
from collections.abc import Mapping

HANDOVER = "LOWCOMM_HANDOVER"
"""The variable by which a program tells its daemon the pipe and its own id, PIPE:PID."""


class AdoptedProgram:
    """The parent of this process, which waits for an answer."""

    def __init__(self, pipe: int, pid: int) -> None:
        self.pid = pid
        self._pipe = pipe

    @property
    def is_gone(self) -> bool:
        return os.getppid() != self.pid

    def answer(self, content: Mapping[str, object]) -> bool:
        """Answer it, unless that was done before; then, and if it is gone, the result is False."""
        if self._pipe < 0:
            return False
        pipe, self._pipe = self._pipe, -1
        with contextlib.suppress(BrokenPipeError), open(pipe, "w", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
            return True
        return False


def adopted_program() -> AdoptedProgram | None:
    """The program that has started this process as its daemon; None if a person did, or a daemon.
    Removes the variable from the environment."""
    pipe, _, pid = os.environ.pop(HANDOVER, "").partition(":")
    if not (pipe.isdecimal() and pid.isdecimal()):
        return None
    os.set_inheritable(int(pipe), False)
    return AdoptedProgram(int(pipe), int(pid))
