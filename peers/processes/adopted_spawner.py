"""The spawner of a program that has started its node's daemon.

Must NOT end the program, which was there before the daemon.
"""

import asyncio
import contextlib
import shlex
from collections.abc import Mapping, Sequence

from peers.processes.adopted import AdoptedProgram
from peers.processes.process_handles import ProcessHandle
from peers.processes.supervisor import Exit, NotRunnable


class AdoptedSpawner:
    """Implements Spawner for a program that runs already: one attempt, which ends with it."""

    def __init__(self, parent: AdoptedProgram, argv: Sequence[str]) -> None:
        """`argv`: its command line, for people."""
        self._parent = parent
        self._argv = tuple(argv)
        self._handle: ProcessHandle | None = None

    @property
    def program(self) -> str:
        return f"the program `{shlex.join(self._argv)}`"

    async def start(self, envs: Sequence[Mapping[str, str]]) -> None:
        """Answer the program. Raises NotRunnable if it is gone, or has attached before."""
        await self.close()
        with contextlib.suppress(OSError):
            self._handle = ProcessHandle(self._parent.pid)
        if self._handle is None or self._parent.is_gone:
            raise NotRunnable("it has ended")
        if len(envs) != 1 or not self._parent.answer({"environment": dict(envs[0])}):
            raise NotRunnable("it is one rank, which has attached before")

    async def wait(self) -> Exit:
        """The end of the program. Its status is not known, and it cannot be started again."""
        assert self._handle is not None, "start first"
        ended = asyncio.Event()
        self._handle.watch(ended.set)
        await ended.wait()
        return Exit(None, 0, final=True)

    async def last_line(self) -> str:
        return ""

    async def close(self) -> None:
        """Watch it no more."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    stop = close
