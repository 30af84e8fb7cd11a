"""The program that has started its node's daemon: one rank, or several of a launcher (torchrun), of
which the first did so.

The daemon answers it once, with a line of JSON through an inherited pipe: the environment in which
the rank attaches, or the error for which there is no daemon. Must NOT end the program, nor import
anything slow: the command line imports this.
"""

import contextlib
import json
import os
from collections.abc import Mapping

HANDOVER = "LOWCOMM_HANDOVER"
"""The variable by which a program tells its daemon the pipe, its own id, the number of its ranks,
and the id of their launcher (0: none), PIPE:PID:RANKS:LAUNCHER."""

TOKEN_VARIABLE = "LOWCOMM_TOKEN"  # noqa: S105 (a name)
"""The variable with a join token. Each program that reads it removes it: children need none."""


class AdoptedProgram:
    """The parent of this process, which waits for an answer."""

    def __init__(self, pipe: int, pid: int, *, ranks: int = 1, launcher: int = 0) -> None:
        """`ranks`: number of processes of the program. `launcher`: the process that started them
        all and ends last; 0: there is none."""
        self.pid = pid
        self.ranks = ranks
        self.launcher = launcher
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
    numbers = os.environ.pop(HANDOVER, "").split(":")
    if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
        return None
    pipe, pid, ranks, launcher = map(int, numbers)
    os.set_inheritable(pipe, False)
    return AdoptedProgram(pipe, pid, ranks=ranks, launcher=launcher)
