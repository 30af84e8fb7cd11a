"""Jobs in one order, some of them in a worker thread: arithmetic, and what must come after it.

Must NOT know what a job does.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from protocols.types import LowcommError

T = TypeVar("T")
Job = tuple[Callable[[], object], Callable[[object], None] | None]
"""(work for the worker thread, callback in the event loop for its result). Without a callback the
work is done in the event loop, in the order of the jobs."""


class JobQueue:
    """`run()` until `stop()`; all jobs handed over before are done by then."""

    def __init__(self) -> None:
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue()

    def compute(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` in the worker thread, in order; then `done` in the event loop."""
        self._jobs.put_nowait((work, cast(Callable[[object], None], done)))

    def in_turn(self, action: Callable[[], None]) -> None:
        """Run `action` in the event loop, after the worker's earlier tasks."""
        self._jobs.put_nowait((action, None))

    def fail(self, error: LowcommError) -> None:
        """`run` raises the error, after the jobs before it."""

        def raise_it() -> None:
            raise error

        self._jobs.put_nowait((raise_it, None))

    def stop(self) -> None:
        self._jobs.put_nowait(None)

    async def run(self, thread: ThreadPoolExecutor) -> None:
        """One job at a time: a copy for a joiner never falls between two halves of a step."""
        loop = asyncio.get_running_loop()
        while (job := await self._jobs.get()) is not None:
            compute, done = job
            if done is None:
                compute()
            else:
                done(await loop.run_in_executor(thread, compute))
