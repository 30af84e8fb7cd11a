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
        self._handles: list[ProcessHandle] = []
        """The program and its launcher."""

    @property
    def program(self) -> str:
        return f"the program `{shlex.join(self._argv)}`"

    async def start(self, envs: Sequence[Mapping[str, str]]) -> None:
        """Answer the program. Raises NotRunnable if it is gone, or has attached before."""
        await self.close()
        parent = self._parent
        watched = (parent.pid, parent.launcher) if parent.launcher else (parent.pid,)
        with contextlib.suppress(OSError):
            for pid in watched:
                self._handles.append(ProcessHandle(pid))
        if len(self._handles) < len(watched) or parent.is_gone:
            raise NotRunnable("it has ended")
        if not parent.answer({"environment": dict(envs[0])}):
            raise NotRunnable("it has attached before")

    async def wait(self) -> Exit:
        """The end of the program, or of its launcher, which does not end before its ranks unless it
        was killed. Its status is not known, and it cannot be started again."""
        assert self._handles, "start first"
        ended = asyncio.Event()
        for handle in self._handles:
            handle.watch(ended.set)
        await ended.wait()
        return Exit(None, 0, final=True)

    async def last_line(self) -> str:
        return ""

    async def close(self) -> None:
        """Watch it no more."""
        for handle in self._handles:
            handle.close()
        self._handles = []

    stop = close
