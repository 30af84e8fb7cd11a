"""The ranks of this node, as their daemon sees them: one object, started and cancelled as one.

RankGroup runs attempt after attempt with the same number of ranks, serves their sockets, turns
their messages into events, and answers clients on the bus. A fault of a rank ends its attempt and
never the daemon. Must NOT decide anything about training: boundaries, results and reactions to a
loss belong to its owner.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from functools import partial

from peers.ipc.command_bus import Bus, Question, serve
from peers.ipc.daemon_socket import Closed, DaemonSocketServer, RankLink
from peers.ipc.messages import (
    Answer,
    Boundary,
    Configured,
    Contributed,
    RankEvaluated,
    RankHello,
    RankLayout,
    RankMessage,
    RankReady,
    Result,
    SampleDemand,
    Snapshotted,
    StepMetrics,
    TensorPlace,
    TrainsNoMore,
    Unfit,
)
from peers.ipc.msgpack_records import LinkError
from peers.ipc.shared_memory import Slots
from peers.ipc.step_orders import Obeyed, Order
from peers.processes.supervisor import Spawner
from peers.ranks.attempt import (
    FirstStep,
    RankAttempt,
    RankFault,
    Stage,
    WrongWorld,
    frozen_in,
    layout_in,
)
from peers.ranks.attempt_runner import AttemptRunner
from peers.ranks.config import RanksConfig
from peers.ranks.events import (
    GroupLost,
    GroupMoving,
    GroupReady,
    GroupStalled,
    ProgramEnded,
    RankContribution,
    RankEvent,
    RankMetrics,
    RanksDemand,
    RanksEvaluated,
    RanksFailed,
    RanksFinished,
    RanksLayout,
    RanksObeyed,
    RanksSnapshotted,
    StopAsked,
)
from peers.ranks.group_memory import GroupMemory, HandedOver
from peers.ranks.lasting_faults import AttemptFault
from peers.ranks.rendezvous import Elsewhere, Rendezvous
from peers.ranks.restarts import Restarts
from protocols.types import ConfigError, LowcommError, Samples


class RankGroup:
    """Construct, then `run()`. Every other method is for callbacks and tasks of the same loop."""

    def __init__(
        self,
        config: RanksConfig,
        *,
        spawner: Spawner,
        on_event: Callable[[RankEvent], None],
        decide_boundary: Callable[[Boundary], Answer],
        answer: Callable[[Question], str],
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`on_event` and `decide_boundary` must not block; `answer` returns JSON text. `elsewhere`:
        for ranks on other hosts, as of Rendezvous."""
        self.rendezvous = Rendezvous(config, elsewhere)
        self._config = config
        self._spawner = spawner
        self._on_event = on_event
        self._decide_boundary = decide_boundary
        self._answer = answer
        self._configured: Configured | None = None
        self._refusal: LowcommError | None = None
        """Why the ranks were refused."""
        self._handed = HandedOver(on_event)
        self._memory = GroupMemory()
        self._restarts = Restarts(config.restarts_max)
        self._running: AttemptRunner | None = None
        """The present attempt; None between two attempts."""

    @property
    def slots(self) -> Slots | None:
        """The shared memory, from `provide` until `run` ends."""
        return self._memory.slots

    @property
    def fault(self) -> AttemptFault | None:
        """How the last attempt was lost; None before that, or if the daemon gave it up."""
        return self._restarts.fault

    @property
    def program(self) -> str:
        """The name of the program that the ranks run."""
        return self._spawner.program

    @property
    def unattached(self) -> int:
        """The ranks that have not said hello; all of them between two attempts."""
        running = self._running
        if running is None:
            return self._config.ranks
        return len(running.attempt.in_stage(Stage.STARTING))

    @property
    def first_step(self) -> FirstStep | None:
        """As in RankAttempt; None between two attempts."""
        running = self._running
        return running.attempt.first_step if running is not None else None

    def configure(self, *, run: str, node: str, corpus: str) -> None:
        """Answer the ranks' hello from now on: `run` and `node` are JSON, `corpus` a path."""
        self._configured = Configured(run=run, node=node, corpus=corpus)
        if self._running is not None:
            self._running.configure(self._configured)

    def provide(
        self, slots: Slots, *, initial: bool, slot: int, rank_state: str, frozen: str = ""
    ) -> None:
        """Attach the ranks from now on, in this attempt and later ones.

        `slots` are ours from the first call on; later calls change the other values only. Ranks of
        a later attempt are told `initial` false once a result was posted.
        """
        self._memory.provide(
            slots, initial=initial, slot=slot, rank_state=rank_state, frozen=frozen
        )
        if self._running is not None:
            self._memory.attach(self._running)

    def refuse(self, why: str) -> None:
        """Tell the ranks, which exit; `run` then raises RanksFailed with `why`."""
        self._refuse(RanksFailed(why))

    def _refuse(self, error: LowcommError) -> None:
        """Refuse the ranks; only the first error counts."""
        self._refusal = self._refusal or error
        why = str(self._refusal)
        running = self._running
        if running is None:
            return
        if running.attempt.is_ready:
            running.end.lose(why)  # They train, and may not read the message for long.
        for link in running.links.values():
            link.refuse(why)

    def post_result(self, result: Result) -> None:
        """Send the next result of its fragment, which lies in that place of `slots`; it gets its
        generation here.

        Before GroupReady it is not sent: post again then. A rank that still reads the earlier
        content of this place finds it torn, and is lost.
        """
        result = self._memory.publish(result)
        running = self._running
        if running is not None and running.attempt.is_ready:
            running.post(result)

    def grant(self, samples: Samples) -> None:
        """Answer RanksDemand of this attempt."""
        if self._running is not None:
            self._running.grant(samples)

    def restart(self, why: str) -> None:
        """End the attempt: the ranks cannot go on, and new ones begin. If none of their
        contributions counted, the attempt counts as one without a contribution."""
        if self._running is not None:
            attempt = self._running.attempt
            attempt.contributed_once = attempt.counted_once
            self._running.end.lose(why, ordered=True)

    def order(self, order: Order) -> bool:
        """In a stepwise run: give the ranks an order. False if there are none."""
        return self._running is not None and self._running.order(order)

    async def run(self) -> None:
        """Run until the ranks have finished. Raises RanksFailed; ConfigError if the ranks find
        their configuration impossible, or the program is missing; OSError if no socket can be made.

        However it ends, no process, socket or directory of the ranks is left.
        """
        with contextlib.ExitStack() as stack:
            self.rendezvous.make_directory()
            stack.callback(self.rendezvous.close)
            stack.callback(self._memory.close)
            # Late ones of a dead attempt, and foreign processes.
            links_max = 4 * self._config.ranks + 16
            daemon_sockets = DaemonSocketServer(
                self.rendezvous.socket_path, links_max=links_max, obeyed=self._obeyed
            )
            stack.callback(daemon_sockets.close)
            self.rendezvous.lead_here(daemon_sockets.inbox, lambda: self.slots)
            bus = Bus(self.rendezvous.bus_endpoint)
            stack.callback(bus.close)
            try:
                async with asyncio.TaskGroup() as tasks:
                    serving = (
                        tasks.create_task(self._serve_lifelines(daemon_sockets)),
                        tasks.create_task(
                            serve(bus, self._answer, partial(self._on_event, StopAsked()))
                        ),
                    )
                    failure = await self._run_attempts(daemon_sockets)
                    for task in serving:
                        task.cancel()
            finally:
                await self._spawner.close()
        if failure is not None:
            raise failure

    async def _run_attempts(self, daemon_sockets: DaemonSocketServer) -> LowcommError | None:
        """Why there is no further attempt; None when the ranks have finished."""
        for number in itertools.count():
            if self._refusal:
                break
            attempt = RankAttempt(
                number,
                ranks=self._config.ranks,
                hang_limits=self._config.hang_limits,
                decide_boundary=self._decide_boundary,
            )
            running = AttemptRunner(
                attempt, spawner=self._spawner, on_stall=partial(self._tell_stall, number)
            )
            await self._run_attempt(running, daemon_sockets)
            if running.end.finished:
                self._on_event(RanksFinished(number))
                return None
            if self._refusal:
                break
            if running.end.left:
                self._on_event(ProgramEnded(number))
                await asyncio.Event().wait()  # Our owner ends us, once the node has left.
            failure = self._restarts.lost(running, program=self.program)
            if failure is not None:
                return failure
            await asyncio.sleep(self._restarts.delay_s)
        return self._refusal

    async def _run_attempt(
        self, running: AttemptRunner, daemon_sockets: DaemonSocketServer
    ) -> None:
        """One attempt, of which nothing is left afterwards."""
        ranks = self._config.ranks
        self._running = running
        try:
            await running.run(self.rendezvous.environments, lambda: self._memory.steps(ranks))
            self._handed.tell_all()
            end = running.end
            if not (end.finished or end.left or self._refusal):
                self._on_event(GroupLost(running.attempt.number, end.why))
        finally:
            self._running = None
            self._handed.clear()  # If cancelled, nothing is reported any more.
            spared = self._config.adopted and (self._refusal or not running.end.reason)
            daemon_sockets.end_links(kill=not spared)
            await self._spawner.stop()
            self._memory.void()

    async def _serve_lifelines(self, daemon_sockets: DaemonSocketServer) -> None:
        while True:
            link, message = await daemon_sockets.receive()
            running = self._running
            rank = None if running is None else running.rank_of(link)
            if running is not None and rank is not None:
                try:
                    self._hear_rank(running, rank, message)
                except (RankFault, LinkError) as error:
                    running.end.lose(str(error))
            elif isinstance(message, RankHello):
                self._greet(link, message)
            elif not isinstance(message, Closed):  # The end of a foreign connection has no effect.
                link.refuse(f"{type(message).__name__} before RankHello")

    def _greet(self, link: RankLink, message: RankHello) -> None:
        running = self._running
        if self._refusal:
            link.refuse(str(self._refusal))
        elif running is None or message.attempt != running.attempt.number:
            # It is of a dead attempt: its launcher started it late.
            link.refuse(f"attempt {message.attempt} of the ranks is over")
        else:
            try:
                rank = running.attempt.hello(message)
            except RankFault as error:
                if isinstance(error, WrongWorld) and not running.attempt.is_ready:
                    self._refuse(ConfigError(str(error)))
                link.refuse(str(error))
                running.end.lose(str(error))
                return
            link.accept()
            running.links[rank] = link
            if self._configured is not None:
                running.configure(self._configured)

    def _obeyed(self, link: RankLink, message: Obeyed) -> None:
        if self._running is not None and self._running.obeyed(link, message):
            self._on_event(RanksObeyed(message.number))

    def _hear_rank(self, running: AttemptRunner, rank: int, message: RankMessage | Closed) -> None:
        attempt = running.attempt
        if isinstance(message, Boundary):
            running.links[rank].send(attempt.boundary(rank, message))
        elif isinstance(message, Contributed):
            if attempt.contributed(rank, message):
                self._take_contribution(message)
        elif isinstance(message, SampleDemand):
            if attempt.demanded(rank, message):
                self._on_event(RanksDemand(message.step_samples, message.ahead))
        elif isinstance(message, StepMetrics | RankEvaluated | Snapshotted):
            report = report_of(attempt, rank, message)
            if report is not None:
                self._on_event(report)
        elif isinstance(message, RankLayout):
            tensors = attempt.layout(
                rank, layout_in(message.packed), message.elements, frozen_in(message.frozen)
            )
            if tensors is not None:
                self._take_layout(running, tensors)
        elif isinstance(message, RankReady):
            if attempt.ready(rank):
                self._on_event(GroupReady(attempt.number))
        elif isinstance(message, Unfit):
            self._refuse(ConfigError(message.why))
        elif isinstance(message, TrainsNoMore):
            if attempt.trains_no_more(rank):
                self._handed.tell_all()
                self._on_event(GroupStalled(attempt.number, "its program trains no more"))
                if self._config.adopted:
                    running.end.leave()
        elif isinstance(message, RankHello | Obeyed):
            raise RankFault(f"rank {rank} sends {type(message).__name__} out of turn")
        else:
            running.closed(rank, message, adopted=self._config.adopted)

    def _take_layout(self, running: AttemptRunner, tensors: tuple[TensorPlace, ...]) -> None:
        self._memory.take_layout(running, tensors)
        self._on_event(RanksLayout(running.attempt.number, tensors, running.attempt.frozen))
        self._memory.attach(running)

    def _take_contribution(self, message: Contributed) -> None:
        fragment, generation = message.fragment, message.generation
        self._memory.contributed(fragment, generation)
        counts = (message.steps, message.tokens, message.samples)
        self._handed.enqueue(RankContribution(fragment, generation, *counts))

    def _tell_stall(self, attempt: int, why: str) -> None:
        if self._running is None or not self._running.attempt.is_done:
            self._on_event(GroupStalled(attempt, why) if why else GroupMoving(attempt))


def report_of(
    attempt: RankAttempt, rank: int, message: StepMetrics | RankEvaluated | Snapshotted
) -> RankEvent | None:
    """The event of a rank's report; None if another rank's tells the same. Raises RankFault if the
    rank is not attached."""
    attempt.check_attached(rank, type(message).__name__)
    if isinstance(message, StepMetrics):
        return RankMetrics(rank, message.step, message.tokens, message.loss, message.tokens_per_s)
    if isinstance(message, Snapshotted):
        complete = attempt.snapshotted(rank, message.directory)
        return RanksSnapshotted(message.directory) if complete else None
    return RanksEvaluated(message.loss, message.windows, message.sample)
