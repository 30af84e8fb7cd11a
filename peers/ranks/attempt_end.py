"""The end of one attempt, and what is known of its cause.

Must NOT watch a process or a rank (`peers/ranks/attempt_runner.py`), nor start another attempt.
"""

import asyncio
import contextlib

from peers.processes.supervisor import Exit
from peers.ranks.lasting_faults import AttemptFault
from protocols.types import LowcommError

EXIT_REPORT_S = 1.0
"""A lost link says less than the exit status, which comes within milliseconds if the rank was
killed; an interpreter that ends closes the link first, and took 0.4 s more on a busy machine."""


class AttemptEnd:
    """Whether an attempt has ended, and why. Of several reasons the first one counts."""

    def __init__(self) -> None:
        self.finished = False
        """All ranks ended as they were told to."""
        self.left = False
        """The program ended by itself, in order, before the run."""
        self.hopeless: LowcommError | None = None
        """Why no attempt can run the program."""
        self.reason = ""
        """Why the attempt is lost; "" if that is not known, or it is not lost."""
        self.line = ""
        """The last telling line of the ranks on stderr."""
        self.steps: tuple[int, ...] = ()
        """The step counters at the end."""
        self._hint = ""
        """A reason that counts if there is no better one."""
        self._exit: Exit | None = None
        """The exit of a rank that ended the attempt; None otherwise."""
        self._ordered = False
        """The daemon ended the attempt, for a reason of its own."""
        self._over = asyncio.Event()
        self._explained = asyncio.Event()

    @property
    def why(self) -> str:
        """Why it is lost; "" while it runs and when it has finished."""
        return self.reason or self._hint

    @property
    def fault(self) -> AttemptFault | None:
        """The fault that ended it; None if the daemon did."""
        if self._ordered:
            return None
        end, steps = self._exit, self.steps
        step = steps[end.rank] if end is not None and end.rank is not None else max(steps)
        code = None if end is None else end.returncode
        said = self.line if end is not None or not self.reason else ""
        return AttemptFault(why=self.why, code=code, line=said or self.why, step=step)

    def finish(self) -> None:
        """All ranks have ended as they were told to."""
        self.finished = True
        self._explained.set()
        self._over.set()

    def leave(self) -> None:
        """The program has ended in order, before the run: its node leaves."""
        self.left = not self.reason
        self._explained.set()
        self._over.set()

    def lose(self, reason: str, *, ordered: bool = False) -> None:
        """End the attempt with this reason; only the first one counts. `ordered`: the daemon ended
        it, which tells nothing about the program."""
        self._ordered = self._ordered or (ordered and not self.reason)
        self.reason = self.reason or reason
        self._explained.set()
        self._over.set()

    def lose_by(self, exited: Exit, line: str) -> None:
        """End the attempt, since a rank, or all of them, ended too early. `line`: the last telling
        one on stderr."""
        if self.reason:
            return  # The exit is a consequence of that reason.
        self._exit, self.line = exited, line
        told = f": {line}" if line and exited.returncode > 0 else ""
        self.lose(f"{exited}{told}")

    def suspect(self, hint: str) -> None:
        """End the attempt; an exit status may give a better reason than `hint`."""
        self._hint = self._hint or hint
        self._over.set()

    async def until_over(self) -> None:
        """Wait until the attempt has ended, and a little for the reason."""
        await self._over.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_REPORT_S):
                await self._explained.wait()
