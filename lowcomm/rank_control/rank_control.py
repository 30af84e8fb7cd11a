"""Controls the node's own ranks: starts them, founds the run with them, takes their events.

It stands between peers.ranks.rank_group (processes and shared memory) and the core. What the ranks
get and contribute is in rank_rounds.py and rank_steps.py. Must NOT communicate with peers.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from lowcomm.checkpoints import frozen_file
from lowcomm.config.schema import RunConfig, run_to_json
from lowcomm.methods import RoundMethod
from lowcomm.outer_state.replica import Replica
from lowcomm.rank_control.context import DaemonContext
from lowcomm.rank_control.further_hosts import on_all_hosts
from lowcomm.rank_control.program_notices import mending
from lowcomm.rank_control.rank_rounds import RankRounds, makes_evaluation
from lowcomm.rank_control.rank_steps import RankSteps
from lowcomm.rank_control.round_clock import RoundClock
from lowcomm.startup.agreement import model_difference
from lowcomm.startup.start_options import StartOptions
from peers.ipc import Answer, Boundary, Question, Slots
from peers.processes import (
    AdoptedSpawner,
    CommandSpawner,
    Spawner,
    ZygoteSpawner,
)
from peers.ranks import HangLimits, RankGroup, RanksConfig
from peers.ranks import events as r
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.types import ConfigError, FrozenTensor, TensorSpec

PRELOAD = ("torch", "torch.distributed.fsdp", "torch._dynamo", "lowcomm.worker")
"""Modules that the zygote imports once, so that a rank starts in a fraction of a second."""
WORKER = "lowcomm.worker:main"


class RankControl:
    """The processes of the node's ranks, and their state: one for the life of the daemon."""

    def __init__(
        self,
        context: DaemonContext,
        *,
        start: StartOptions,
        stop: Callable[[str, c.Outcome], None],
        leave: Callable[[str], None],
        answer: Callable[[Question], str],
    ) -> None:
        """`start`: with the program of the ranks. `stop` ends the daemon
        with a reason, `leave` lets it leave the run first; `answer` answers local commands."""
        node = context.config.node
        spawner, elsewhere = on_all_hosts(_spawner(start), context, adopted=bool(start.adopted))
        self._context = context
        self._stop, self._leave = stop, leave
        self._slot = -1
        self._layout: asyncio.Future[r.RanksLayout] | None = None
        self._initial: asyncio.Future[tuple[str, ...]] | None = None
        """On the founder, the future digests of the initial state, which its ranks make; on other
        nodes None."""
        self._digests: dict[int, str] = {}
        """Digests of the initial state that are known so far, by fragment."""
        self.frozen: Sequence[FrozenTensor] = ()
        """The run's frozen tensors, once its layout is known."""
        self._finished = asyncio.Event()
        self.group = RankGroup(
            RanksConfig(
                ranks=node.ranks,
                port_range=node.port_range,
                hang_limits=HangLimits(
                    node.hang_timeout_s,
                    attach_timeout_s=node.attach_timeout_s,
                    first_step_timeout_s=node.first_step_timeout_s,
                ),
                adopted=start.adopted is not None,
                restarts_max=node.rank_restarts_max if start.adopted is None else 0,
            ),
            spawner=spawner,
            on_event=self._on_event,
            decide_boundary=self._decide_boundary,
            answer=answer,
            elsewhere=elsewhere,
        )
        self.rounds = RankRounds(context, self.group)
        self.steps = RankSteps(context, self.group)

    async def run(self) -> None:
        """Run the ranks until they have finished."""
        figures = self._context.figures
        figures.loading_since = asyncio.get_running_loop().time()
        try:
            await self.group.run()
        except r.ProgramFailed as error:
            raise r.ProgramFailed(f"{error}; {mending(self._context)}") from error

    # Starting -------------------------------------------------------------------------------

    def configure(self, run: RunConfig) -> None:
        """Give the ranks the configuration, with which they build their model. Raises
        ConfigError if they cannot take part in it."""
        context = self._context
        if isinstance(run.method, RoundMethod):
            self.rounds.clock = RoundClock(run.method.round_s)
        elif context.node.other_hosts:
            raise ConfigError(
                f"node.other_hosts is for methods of rounds, and run.method.name is "
                f"{run.method.name!r}: run all ranks of this node on one host"
            )
        self._give_configuration(run if context.founds else run.for_joiners())

    def _give_configuration(self, run: RunConfig) -> None:
        self.group.configure(
            run=run_to_json(run),
            node=json.dumps(asdict(self._context.node)),
            corpus=str(self._context.corpus_directory),
        )

    async def initial_layout(self) -> tuple[tuple[TensorSpec, ...], tuple[FrozenTensor, ...]]:
        """On the founder: wait for the ranks' model: its layout, and its frozen tensors."""
        self._layout = asyncio.get_running_loop().create_future()
        reported = await self._layout
        return reported.tensors, reported.frozen

    async def initial_state(self) -> tuple[str, ...]:
        """On the founder: let the ranks attach, make version 0 from their initial parameters, and
        return its digests by fragment."""
        self._initial = asyncio.get_running_loop().create_future()
        self._slot = 0
        self._attach()
        return await self._initial

    def provide(self, slot: int) -> None:
        """The log admits this node with this data slot: let the ranks attach."""
        if self._slot < 0:
            self._slot = slot
            self._attach()

    def _attach(self) -> None:
        """Create the shared memory in the worker thread, since memory of the model's size takes
        time. Call this once."""
        replica, node = self._context.replica, self._context.node
        assert replica is not None

        def made() -> Slots:
            slots = Slots.create(replica.shape(node.ranks), replica.arrays.directory)
            if isinstance(replica, Replica):
                replica.share(slots)
            return slots

        driver = self._context.driver
        driver.compute(made, self._provide)

    def _provide(self, slots: Slots) -> None:
        """Give the ranks the shared memory and the path of their optimizers' state, which differs
        between attempts."""
        context = self._context
        schedule = context.checkpoint_schedule
        self.group.provide(
            slots,
            initial=self._initial is not None,
            slot=self._slot,
            rank_state=str(schedule.kept_rank_state or ""),
            frozen=frozen_file.path_to_write(context.path) if self.frozen else "",
        )

    # Events ---------------------------------------------------------------------------------

    def _on_event(self, event: r.RankEvent) -> None:
        context, shell = self._context, self.steps.shell
        match event:
            case r.RanksLayout():
                self._check_layout(event)
            case r.GroupReady(attempt=attempt):
                if self.frozen:
                    frozen_file.publish(context.path)
                context.event_log.write("ranks_ready", attempt=attempt)
                if self._initial is None or self._initial.done():
                    context.driver.feed(v.TrainersReady())
                elif shell is not None:
                    shell.found(self._founded)
            case r.RanksObeyed(number=number):
                if shell is not None:
                    shell.obeyed(number)
            case r.RankContribution():
                self._contribution(event)
            case r.RanksDemand():
                self.rounds.demanded(event)
            case r.RankMetrics():
                context.figures.measured(event)
            case r.RanksEvaluated(loss=loss, windows=windows, sample=sample):
                found = {"loss": loss, "windows": windows, "sample": sample}
                context.event_log.write("evaluated", round=self.rounds.evaluated_round, **found)
            case r.RanksSnapshotted(directory=directory):
                context.checkpoint_schedule.kept_rank_state = Path(directory)
            case r.GroupLost(attempt=attempt, why=why):
                context.event_log.write("ranks_lost", attempt=attempt, why=why)
                context.figures.ranks_lost()
                self.rounds.ranks_lost()
                if self.group.slots is not None:
                    self._provide(self.group.slots)
                if shell is not None:
                    shell.ranks_lost()
                context.driver.feed(v.TrainersLost(why))
            case r.GroupStalled(why=why):
                context.event_log.write("ranks_stalled", why=why)
                context.driver.feed(v.TrainersStalled(why))
            case r.GroupMoving():
                context.event_log.write("ranks_moving")
                context.driver.feed(v.TrainersMoving())
            case r.RanksFinished():
                self._finished.set()
            case r.ProgramEnded():
                self._leave("its program has ended")
            case r.StopAsked():
                self._leave("asked to leave")

    def _decide_boundary(self, question: Boundary) -> Answer:
        return self.rounds.decide_boundary(question)

    def _check_layout(self, mine: r.RanksLayout) -> None:
        replica = self._context.replica
        if self._layout is not None and not self._layout.done():
            self._layout.set_result(mine)
        elif replica is not None:
            agreed = replica.layout, self.frozen
            difference = model_difference(agreed, (mine.tensors, mine.frozen))
            if difference:
                self._stop(f"this node trains another model: {difference}", "refused")
                self.group.refuse(f"another model: {difference}")

    def _contribution(self, event: r.RankContribution) -> None:
        replica, slots = self._context.replica, self.group.slots
        assert slots is not None
        if not isinstance(replica, Replica):
            return  # The rank waits for an order in vain, and is restarted as hanging.
        local = slots.contribution(event.fragment)
        if self._initial is None or self._initial.done():
            self.rounds.contributed(event, replica, local)
            return
        self._digests[event.fragment] = replica.initialise(event.fragment, local)
        if len(self._digests) == len(replica.sizes):
            self._founded(*(digest for _, digest in sorted(self._digests.items())))

    def _founded(self, *digests: str) -> None:
        """The ranks have made the initial state, with these digests by fragment."""
        assert self._initial is not None, "another peer began the run"
        self._initial.set_result(digests)
        driver, run = self._context.driver, self._context.run_config
        assert run is not None
        self._give_configuration(run.for_joiners())  # For ranks that replace these.
        driver.feed(v.TrainersReady())

    # Ending ---------------------------------------------------------------------------------

    async def wait_finished(self, timeout_s: float) -> None:
        """Wait, at most so many seconds, until the ranks have applied the last result, evaluated it
        and ended."""
        shell = self.steps.shell
        if shell is not None:
            shell.finish(evaluate=makes_evaluation(self._context.core))
        if self.rounds.finishing or self.steps.finishing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._finished.wait()


def _spawner(start: StartOptions) -> Spawner:
    """The spawner of the ranks' program: one that runs already, or another one."""
    if start.adopted is not None:
        return AdoptedSpawner(start.adopted, start.command)
    return program_spawner(start.command)


def program_spawner(command: Sequence[str]) -> Spawner:
    """The spawner of a user's own program, or of the built-in one if the command is empty."""
    if command:
        return CommandSpawner(command)
    return ZygoteSpawner(PRELOAD, target=WORKER)
