"""Runs the processes of one attempt until it is over, knows why it is, and speaks to them.

Must NOT listen to the ranks (`peers/ranks.py` does) nor start another attempt.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from peers.attempt import Attempt, RankFault, Stage
from peers.lifeline import Lifeline
from peers.orders import Obeyed, Order
from peers.rank_messages import Attached, Configured, Result
from peers.supervisor import Spawner, SpawnError

EXIT_REPORT_S = 0.25
"""A lost link says less than the exit status, which comes within milliseconds if the rank died."""
LAST_WORDS_S = 1.0
"""Ranks that have finished are heard out: their last words may be read after the exit statuses."""


class AttemptRun:
    """One attempt: its book, its connections, its processes, and how it ends."""

    def __init__(self, attempt: Attempt, *, spawner: Spawner) -> None:
        self.attempt = attempt
        self.links: dict[int, Lifeline] = {}
        """By rank, of those that said hello."""
        self.fragment_bytes: tuple[int, ...] = ()
        """Once all ranks have reported the same layout."""
        self.finished = False
        self._spawner = spawner
        self._hint = ""
        self._reason = ""
        self._over = asyncio.Event()
        self._explained = asyncio.Event()
        self._silent: set[int] = set()
        """Who will say nothing more."""
        self._heard_out = asyncio.Event()

    @property
    def why(self) -> str:
        """Why it is lost; "" while it runs and when it has finished."""
        return self._reason or self._hint

    def rank_of(self, link: Lifeline) -> int | None:
        """The rank at the other end; None for a stranger, or a rank of another attempt."""
        return next((rank for rank, other in self.links.items() if other is link), None)

    def configure(self, configured: Configured) -> None:
        """Answer the ranks that said hello."""
        for rank in self.attempt.in_stage(Stage.GREETED):
            self.links[rank].send(configured)
            self.attempt.configured(rank)

    def attach(self, attached: Attached, fd: int) -> None:
        """Let the ranks that reported their layout map the shared memory."""
        for rank in self.attempt.in_stage(Stage.REPORTED):
            self.links[rank].send(attached, fd=fd)
            self.attempt.attached(rank, attached.contribution_generations)

    def order(self, order: Order) -> bool:
        """To all ranks. False: they are not attached yet."""
        if not self.attempt.is_ready:
            return False
        self.attempt.ordered(order)
        for link in self.links.values():
            link.send(order)
        return True

    def post(self, result: Result) -> None:
        """To all ranks, which are ready. Who does not take it is closed by its link."""
        for link in self.links.values():
            link.send(result)
        self.attempt.result_sent(result)

    def closed(self, rank: int) -> None:
        """All that this rank has said is heard."""
        self._silent.add(rank)
        if len(self._silent) == len(self.links):
            self._heard_out.set()

    def lose(self, reason: str) -> None:
        """The first reason counts: what follows is its consequence."""
        self._reason = self._reason or reason
        self._explained.set()
        self._over.set()

    def suspect(self, hint: str) -> None:
        """It is lost, but an exit status may say better why."""
        self._hint = self._hint or hint
        self._over.set()

    def obeyed(self, link: Lifeline, message: Obeyed) -> bool:
        """True when all ranks have obeyed the last order."""
        rank = self.rank_of(link)
        if rank is None:
            return False  # Of an attempt before this one.
        try:
            return self.attempt.obeyed(rank, message.number)
        except RankFault as error:
            self.lose(str(error))
            return False

    async def run(
        self,
        environments: Callable[[int], Sequence[Mapping[str, str]]],
        steps: Callable[[], Sequence[int]],
    ) -> None:
        """Start the ranks and watch them until all have finished or one is lost. What still
        runs then is left to the spawner's `stop`. `environments` makes each rank's variables
        for an attempt's number, or raises SpawnError; `steps` reads the step counters."""
        try:
            await self._spawner.start(environments(self.attempt.number))
        except SpawnError as error:
            self.lose(str(error))
            return
        async with asyncio.TaskGroup() as tasks:
            watching = (
                tasks.create_task(self._watch_exits()),
                tasks.create_task(self._watch_steps(steps)),
            )
            await self._over.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_REPORT_S):
                    await self._explained.wait()
            for task in watching:
                task.cancel()
            if self.finished:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await self._heard_out.wait()

    async def _watch_exits(self) -> None:
        while True:
            end = await self._spawner.wait()
            if self.attempt.ended(end.rank, end.returncode):
                self.finished = True
                self._explained.set()
                self._over.set()
                return
            if end.returncode != 0 or not self.attempt.finishing:
                self.lose(str(end))
                return

    async def _watch_steps(self, steps: Callable[[], Sequence[int]]) -> None:
        try:
            while True:
                await asyncio.sleep(self.attempt.tick_s)
                self.attempt.tick(steps())
        except RankFault as error:
            self.lose(str(error))
