"""Runs the processes of one attempt until it is over, finds out why, and sends them messages.

Must NOT receive messages of ranks (`peers/ranks/rank_group.py`) nor start another attempt.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence

from peers.ipc.daemon_socket import Closed, RankLink
from peers.ipc.messages import Attached, Configured, GrantedLease, Result
from peers.ipc.step_orders import Obeyed, Order
from peers.processes.process_handles import is_stopped
from peers.processes.supervisor import NotRunnable, Spawner, SpawnError
from peers.ranks.attempt import NeverAttached, RankAttempt, RankFault, Stage
from peers.ranks.attempt_end import AttemptEnd
from peers.ranks.events import ProgramFailed
from peers.ranks.stall_watch import TICK_S, StallWatch
from protocols.types import ConfigError, Samples

STOPPED_S = 8.0
"""Seconds after which a stopped process (SIGSTOP) is replaced, since it cannot be at work. A rank
that only makes no step has much longer: it may compile or evaluate."""
LAST_WORDS_S = 1.0
"""Seconds for the last messages of ranks that ended in order, which may be read after their exit
statuses."""


class AttemptRunner:
    """One attempt: its book, its connections, its processes, and its end."""

    def __init__(
        self, attempt: RankAttempt, *, spawner: Spawner, on_stall: Callable[[str], None]
    ) -> None:
        """`on_stall`: called with a reason when a rank stalls, and with "" when all ranks make
        steps again."""
        self.attempt = attempt
        self.links: dict[int, RankLink] = {}
        """By rank that said hello, its connection."""
        self.fragment_bytes: tuple[int, ...] = ()
        """Bytes of each fragment, once all ranks have reported the same layout."""
        self.end = AttemptEnd()
        self._spawner = spawner
        self._on_stall = on_stall
        self._stopped_ticks = 0
        """Ticks since a rank was first seen stopped by a signal."""
        self._silent: set[int] = set()
        """Ranks with closed connections."""
        self._heard_out = asyncio.Event()

    def rank_of(self, link: RankLink) -> int | None:
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
        """Send an order to all ranks. False if they are not attached yet."""
        if not self.attempt.is_ready:
            return False
        self.attempt.ordered(order)
        for link in self.links.values():
            link.send(order)
        return True

    def post(self, result: Result) -> None:
        """Send a result to all ranks, which are ready. The link of a rank that does not read is
        closed."""
        for link in self.links.values():
            link.send(result)
        self.attempt.result_sent(result)

    def grant(self, samples: Samples) -> None:
        """Send the lease that all ranks have asked for."""
        for link in self.links.values():
            link.send(GrantedLease(samples=samples))
        self.attempt.granted()

    def closed(self, rank: int, link: Closed, *, adopted: bool) -> None:
        """The connection of this rank is closed, and all of its messages are read. `adopted`: its
        process is not ours, so no exit status follows."""
        self._silent.add(rank)
        if len(self._silent) == len(self.links):
            self._heard_out.set()
        attempt, end, why = self.attempt, self.end, f"rank {rank}: {link.why}"
        if not link.ended:
            end.lose(why)
        elif attempt.finishing:
            if adopted and attempt.ended(rank, 0):
                end.finish()
        elif rank not in attempt.in_stage(Stage.DONE):
            if adopted:
                end.leave()
            else:
                end.suspect(why)

    def obeyed(self, link: RankLink, message: Obeyed) -> bool:
        """True when all ranks have obeyed the last order."""
        rank = self.rank_of(link)
        if rank is None:
            return False  # It is of an earlier attempt.
        try:
            return self.attempt.obeyed(rank, message.number)
        except RankFault as error:
            self.end.lose(str(error))
            return False

    async def run(
        self,
        environments: Callable[[int], Sequence[Mapping[str, str]]],
        steps: Callable[[], Sequence[int]],
    ) -> None:
        """Start the ranks and watch them until all have finished or one is lost. Remaining
        processes are left to the spawner's `stop`. `environments` makes the variables of each rank
        for an attempt's number, or raises SpawnError; `steps` reads the step counters."""
        end = self.end
        end.steps = tuple(steps())
        try:
            await self._spawner.start(environments(self.attempt.number))
        except SpawnError as error:
            if isinstance(error, NotRunnable):
                end.hopeless = ProgramFailed(f"{self._spawner.program} cannot be run: {error}")
            end.lose(str(error))
            return
        async with asyncio.TaskGroup() as tasks:
            watching = (
                tasks.create_task(self._watch_exits()),
                tasks.create_task(self._watch_steps(steps)),
            )
            await end.until_over()
            end.steps = tuple(steps())
            if not end.finished and not end.reason:
                end.line = await self._spawner.last_line()
            for task in watching:
                task.cancel()
            if end.finished or end.left:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await self._heard_out.wait()

    async def _watch_exits(self) -> None:
        while True:
            try:
                exited = await self._spawner.wait()
            except ConfigError as error:
                self.end.hopeless = error
                self.end.lose(str(error))
                return
            if exited.lost:  # It tells nothing about the program.
                self.end.lose(str(exited), ordered=True)
                return
            if self.attempt.ended(exited.rank, exited.returncode):
                self.end.finish()
                return
            by_itself = exited.rank is None and exited.returncode == 0 and self.attempt.is_ready
            if by_itself or exited.final:
                self.end.leave()
                return
            if exited.returncode != 0 or not self.attempt.finishing:
                if not self.end.reason:
                    self.end.lose_by(exited, await self._spawner.last_line())
                return

    async def _watch_steps(self, steps: Callable[[], Sequence[int]]) -> None:
        attempt = self.attempt
        check_s = attempt.hang_limits.tick_s
        tick_s = min(TICK_S, check_s)
        watch, every = StallWatch(len(steps()), tick_s=tick_s), round(check_s / tick_s)
        try:
            for number in itertools.count(1):
                await asyncio.sleep(tick_s)
                counters, stalled = steps(), bool(watch.stalled)
                if number % every == 0:
                    attempt.tick(counters)
                watch.tick(counters, attempt.in_stage(Stage.TRAINING))
                if stalled != bool(watch.stalled):
                    self._on_stall(next(iter(watch.stalled.values()), ""))
                self._check_stopped(tick_s, is_stalled=bool(watch.stalled))
        except RankFault as error:
            if isinstance(error, NeverAttached) and attempt.number == 0:
                self.end.hopeless = ProgramFailed(f"{self._spawner.program}: {error}")
            self.end.lose(str(error))

    def _check_stopped(self, tick_s: float, *, is_stalled: bool) -> None:
        """Raises RankFault for a process that has been stopped for too long while ranks stall."""
        stopped = [n for n, link in self.links.items() if is_stalled and is_stopped(link.pid)]
        self._stopped_ticks = self._stopped_ticks + 1 if stopped else 0
        if self._stopped_ticks * tick_s >= STOPPED_S:
            raise RankFault(f"rank {stopped[0]} is stopped by a signal (SIGSTOP)")
