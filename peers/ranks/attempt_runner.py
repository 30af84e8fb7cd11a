"""Runs the processes of one attempt until it is over, finds out why, and sends them messages.

Must NOT receive messages of ranks (`peers/ranks/rank_group.py`) nor start another attempt.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence

from peers.ipc.daemon_socket import DaemonSocket
from peers.ipc.messages import Attached, Configured, Result
from peers.ipc.step_orders import Obeyed, Order
from peers.processes.process_handles import is_stopped
from peers.processes.supervisor import Exit, NotRunnable, Spawner, SpawnError
from peers.ranks.attempt import RankAttempt, RankFault, Stage
from peers.ranks.events import ProgramFailed
from peers.ranks.lasting_faults import AttemptFault
from peers.ranks.stall_watch import TICK_S, StallWatch
from protocols.types import ConfigError, LowcommError

STOPPED_S = 8.0
"""Seconds after which a stopped process (SIGSTOP) is replaced, since it cannot be at work. A rank
that only makes no step has much longer: it may compile or evaluate."""
EXIT_REPORT_S = 1.0
"""A lost link says less than the exit status, which comes within milliseconds if the rank was
killed; an interpreter that ends closes the link first, and took 0.4 s more on a busy machine."""
LAST_WORDS_S = 1.0
"""Seconds for the last messages of finished ranks, which may be read after their exit statuses."""


class AttemptRunner:
    """One attempt: its book, its connections, its processes, and its end."""

    def __init__(
        self, attempt: RankAttempt, *, spawner: Spawner, on_stall: Callable[[str], None]
    ) -> None:
        """`on_stall`: called with a reason when a rank stalls, and with "" when all ranks make
        steps again."""
        self.attempt = attempt
        self.links: dict[int, DaemonSocket] = {}
        """By rank that said hello, its connection."""
        self.fragment_bytes: tuple[int, ...] = ()
        """Bytes of each fragment, once all ranks have reported the same layout."""
        self.finished = False
        self.hopeless: LowcommError | None = None
        """Why no attempt can run the program."""
        self._spawner = spawner
        self._on_stall = on_stall
        self._stopped_ticks = 0
        """Ticks since a rank was first seen stopped by a signal."""
        self._exit: Exit | None = None
        """The exit of a rank that ended the attempt; None otherwise."""
        self._line = ""
        """The last telling line of the ranks on stderr."""
        self._steps: tuple[int, ...] = ()
        """The step counters at the end."""
        self._ordered = False
        """The daemon ended the attempt, for a reason of its own."""
        self._hint = ""
        self._reason = ""
        self._over = asyncio.Event()
        self._explained = asyncio.Event()
        self._silent: set[int] = set()
        """Ranks with closed connections."""
        self._heard_out = asyncio.Event()

    @property
    def why(self) -> str:
        """Why it is lost; "" while it runs and when it has finished."""
        return self._reason or self._hint

    @property
    def fault(self) -> AttemptFault | None:
        """The fault that ended it; None if the daemon did."""
        if self._ordered:
            return None
        end, steps = self._exit, self._steps
        step = steps[end.rank] if end is not None and end.rank is not None else max(steps)
        code = None if end is None else end.returncode
        said = self._line if end is not None or not self._reason else ""
        return AttemptFault(why=self.why, code=code, line=said or self.why, step=step)

    def rank_of(self, link: DaemonSocket) -> int | None:
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

    def closed(self, rank: int) -> None:
        """The connection of this rank is closed, and all of its messages are read."""
        self._silent.add(rank)
        if len(self._silent) == len(self.links):
            self._heard_out.set()

    def lose(self, reason: str, *, ordered: bool = False) -> None:
        """End the attempt with this reason; only the first one counts. `ordered`: the daemon ended
        it, which tells nothing about the program."""
        self._ordered = self._ordered or (ordered and not self._reason)
        self._reason = self._reason or reason
        self._explained.set()
        self._over.set()

    def suspect(self, hint: str) -> None:
        """End the attempt; an exit status may give a better reason than `hint`."""
        self._hint = self._hint or hint
        self._over.set()

    def obeyed(self, link: DaemonSocket, message: Obeyed) -> bool:
        """True when all ranks have obeyed the last order."""
        rank = self.rank_of(link)
        if rank is None:
            return False  # It is of an earlier attempt.
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
        """Start the ranks and watch them until all have finished or one is lost. Remaining
        processes are left to the spawner's `stop`. `environments` makes the variables of each rank
        for an attempt's number, or raises SpawnError; `steps` reads the step counters."""
        self._steps = tuple(steps())
        try:
            await self._spawner.start(environments(self.attempt.number))
        except SpawnError as error:
            if isinstance(error, NotRunnable):
                self.hopeless = ProgramFailed(f"{self._spawner.program} cannot be run: {error}")
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
            self._steps = tuple(steps())
            if not self.finished and not self._reason:
                self._line = await self._spawner.last_line()
            for task in watching:
                task.cancel()
            if self.finished:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await self._heard_out.wait()

    async def _watch_exits(self) -> None:
        while True:
            try:
                end = await self._spawner.wait()
            except ConfigError as error:
                self.hopeless = error
                self.lose(str(error))
                return
            if self.attempt.ended(end.rank, end.returncode):
                self.finished = True
                self._explained.set()
                self._over.set()
                return
            if end.returncode != 0 or not self.attempt.finishing:
                await self._lost_by(end)
                return

    async def _lost_by(self, end: Exit) -> None:
        """A rank, or all of them, ended too early."""
        if self._reason:
            return  # This end is a consequence of that reason.
        line = await self._spawner.last_line()
        if not self._reason:
            self._exit, self._line = end, line
            told = f": {line}" if line and end.returncode > 0 else ""
            self.lose(f"{end}{told}")

    async def _watch_steps(self, steps: Callable[[], Sequence[int]]) -> None:
        attempt = self.attempt
        tick_s = min(TICK_S, attempt.tick_s)
        watch, every = StallWatch(len(steps()), tick_s=tick_s), round(attempt.tick_s / tick_s)
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
            self.lose(str(error))

    def _check_stopped(self, tick_s: float, *, is_stalled: bool) -> None:
        """Raises RankFault for a process that has been stopped for too long while ranks stall."""
        stopped = [n for n, link in self.links.items() if is_stalled and is_stopped(link.pid)]
        self._stopped_ticks = self._stopped_ticks + 1 if stopped else 0
        if self._stopped_ticks * tick_s >= STOPPED_S:
            raise RankFault(f"rank {stopped[0]} is stopped by a signal (SIGSTOP)")
