"""Controls the node's own ranks: takes layouts, contributions and figures, gives them results.

It stands between peers.ranks.rank_group (processes and shared memory) and the core. Must NOT
communicate with peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowcomm.config.round_length import early_steps, round_steps
from lowcomm.config.schema import RunConfig, run_to_json
from lowcomm.daemon.program_notices import mending
from lowcomm.daemon.round_clock import RoundClock
from lowcomm.methods import RoundMethod
from lowcomm.outer_state.replica import Replica
from lowcomm.outer_state.step_replica import StepReplica
from lowcomm.startup.startup import interval_samples, layout_difference
from lowcomm.training.round_schedule import ANCHOR
from peers.ipc import NONE, Answer, Boundary, Order, Result, Slots, StepSlots
from peers.processes import CommandSpawner, Spawner, ZygoteSpawner
from peers.ranks import RankGroup, RanksConfig
from peers.ranks import events as r
from peers.steps import StepShell
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.rounds import next_fragment
from protocols.types import (
    CONTRIBUTION_STEPS_MAX,
    CONTRIBUTION_TOKENS_MAX,
    Samples,
    TensorSpec,
    count,
)

if TYPE_CHECKING:
    from lowcomm.daemon.daemon import Daemon

PRELOAD = ("torch", "torch.distributed.fsdp", "torch._dynamo", "lowcomm.worker")
"""Modules that the zygote imports once, so that a rank starts in a fraction of a second."""
WORKER = "lowcomm.worker:main"


@dataclass(slots=True)
class _Attempt:
    """State of one attempt of the ranks. If one rank is lost, a new attempt begins with an empty
    one."""

    uncounted: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """By fragment, (inner steps, tokens) that are in the ranks' parameters, but in no committed
    round; a full result, which replaces those parameters, ends them."""
    waiting: list[c.Resume] = field(default_factory=list[c.Resume])
    """Results that the ranks get once enough samples are leased."""
    over: set[int] = field(default_factory=set[int])
    """Fragments of which the ranks have the last result of the run."""
    chosen: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment to which the ranks were told to contribute, the round that was open then."""


class RankControl:
    """Takes the ranks' events and gives them results. Implements
    peers.steps.step_shell.StepRanks."""

    def __init__(self, daemon: Daemon, *, command: tuple[str, ...]) -> None:
        node = daemon.config.node
        self.steps = 0
        """Inner steps of the ranks since this daemon began."""
        self.tokens = 0
        self.loss = float("nan")
        self.tokens_per_s = 0.0
        self.loading_since = 0.0
        """Time at which the first attempt of the ranks was started, in seconds of the loop's
        clock."""
        self._daemon = daemon
        self._step_shell: StepShell | None = None
        self._slot = -1
        self._layout: asyncio.Future[tuple[TensorSpec, ...]] | None = None
        self._initial: asyncio.Future[tuple[str, ...]] | None = None
        """On the founder, the future digests of the initial state, which its ranks make; on other
        nodes None."""
        self._digests: dict[int, str] = {}
        """Digests of the initial state that are known so far, by fragment."""
        self._lease: Samples = ()
        """Samples that the ranks may draw."""
        self._attempt = _Attempt()
        self._counted_before = (0, 0)
        """(inner steps, tokens) of earlier attempts of the ranks."""
        self._clock = RoundClock(0.0)
        self._finishing = False
        self._finished = asyncio.Event()
        spawner: Spawner = (
            CommandSpawner(command) if command else ZygoteSpawner(PRELOAD, target=WORKER)
        )
        self.group = RankGroup(
            RanksConfig(
                ranks=node.ranks,
                port_range=node.port_range,
                hang_timeout_s=node.hang_timeout_s,
                restarts_max=node.rank_restarts_max,
            ),
            spawner=spawner,
            on_event=self._on_event,
            decide_boundary=self._decide_boundary,
            answer=daemon.answer,
        )

    @property
    def bus_endpoint(self) -> str:
        return self.group.rendezvous.bus_endpoint

    async def run(self) -> None:
        """Run the ranks until they have finished."""
        self.loading_since = asyncio.get_running_loop().time()
        try:
            await self.group.run()
        except r.ProgramFailed as error:
            raise r.ProgramFailed(f"{error}; {mending(self._daemon)}") from error

    # Starting -------------------------------------------------------------------------------

    def configure(self, run: RunConfig) -> None:
        """Give the ranks the configuration, with which they build their model."""
        if isinstance(run.method, RoundMethod):
            self._clock = RoundClock(run.method.round_s)
        self.group.configure(
            run=run_to_json(run),
            node=json.dumps(asdict(self._daemon.config.node)),
            corpus=str(self._daemon.corpus_directory),
        )

    async def initial_layout(self) -> tuple[TensorSpec, ...]:
        """On the founder: wait for the layout of the ranks' model."""
        self._layout = asyncio.get_running_loop().create_future()
        return await self._layout

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
        replica, ranks = self._daemon.replica, self._daemon.config.node.ranks
        assert replica is not None

        def made() -> Slots:
            slots = Slots.create(replica.shape(ranks))
            if isinstance(replica, Replica):
                replica.share(slots)
            return slots

        self._daemon.driver.compute(made, self._provide)

    def _provide(self, slots: Slots) -> None:
        """Give the ranks the shared memory and the path of their optimizers' state, which differs
        between attempts."""
        self.group.provide(
            slots,
            initial=self._initial is not None,
            slot=self._slot,
            rank_state=str(self._daemon.checkpoint_schedule.kept_rank_state or ""),
        )

    # Steps ----------------------------------------------------------------------------------

    def step_shell(self, replica: StepReplica) -> StepShell:
        """Create the object that gives our ranks orders in a stepwise run."""
        self._step_shell = StepShell(
            self._daemon.core,
            work=replica,
            ranks=self,
            shell=self._daemon.driver,
            based=self._based,
        )
        return self._step_shell

    def _based(self, step: int) -> None:
        daemon = self._daemon
        if self._is_kept(step) and daemon.replica is not None:
            daemon.checkpoint_schedule.begin(daemon.core, daemon.replica)

    def _is_kept(self, step: int) -> bool:
        """Whether a checkpoint is made of the state after this step, once it is committed."""
        replica = self._daemon.replica
        assert isinstance(replica, StepReplica), "a run of rounds has no steps"
        copies, rest = divmod(step, replica.method.snapshot_every_steps)
        return not rest and self._daemon.checkpoint_schedule.is_due(copies)

    @property
    def memory(self) -> StepSlots:
        assert self.group.slots is not None, "the ranks have no memory yet"
        return StepSlots(self.group.slots)

    def order(self, order: Order) -> bool:
        if order.kind == "apply" and self._is_kept(order.step):
            order = replace(
                order, snapshot=str(self._daemon.checkpoint_schedule.rank_state(order.step))
            )
        given = self.group.order(order)
        self._finishing = self._finishing or (given and order.kind == "finish")
        return given

    def _founded(self, digest: str) -> None:
        assert self._initial is not None, "another peer began the run"
        self._initial.set_result((digest,))
        self._daemon.driver.feed(v.TrainersReady())

    # Results --------------------------------------------------------------------------------

    def leased(self, command: c.Leased) -> None:
        """The set of samples that the ranks may draw has changed."""
        self._lease = command.samples
        self._resume_waiting()

    def _resume_waiting(self) -> None:
        """Give the ranks the waiting results that need not wait any more."""
        waiting, self._attempt.waiting = self._attempt.waiting, []
        for resume in waiting:
            self.resume(resume)

    def resume(self, command: c.Resume) -> None:
        """Give the ranks a result, and the samples to train until the next one."""
        replica, run = self._daemon.replica, self._daemon.run_config
        assert isinstance(replica, Replica), "a stepwise run has no rounds"
        assert run is not None
        fragment, anchor = command.fragment, command.fragment == ANCHOR
        inner_step = self._daemon.core.run_state.inner_step
        steps = round_steps(run, inner_step)
        needed = interval_samples(run, steps)
        rounds = self._daemon.core.rounds
        last = command.finish and all(x.needs_no_steps for x in rounds if x.fragment != ANCHOR)
        if anchor and count(self._lease) < needed and not last:
            # After a rollback, for example. Rounds applied meanwhile will be in the result too.
            self._attempt.waiting.append(command)
            return
        attempt = self._attempt
        if fragment in attempt.over and not command.finish:
            attempt.over.clear()
            self.group.restart("the run was rolled back to before the last result of a fragment")
            return
        full = command.kind != "rebase" or command.finish  # The last result is always full.
        trimmed = replica.method.trims and command.kind == "counted" and not command.finish
        if (trimmed or not full) and not replica.is_finite(fragment):
            # No delta makes them finite, and the optimizer's state is not finite by now either.
            self._daemon.checkpoint_schedule.kept_rank_state = None
            self.group.restart("their parameters are not finite: new ranks start from the run's")
            return
        # If the result has waited, it contains later rounds too: the fields below describe those.
        placed = replica.place_result(fragment, full=full)
        if full:
            attempt.uncounted.pop(fragment, None)
        commit = self._daemon.core.run_state.commit(fragment, placed.version)
        snapshot, checkpoint_schedule = "", self._daemon.checkpoint_schedule
        if full and anchor and not command.finish and checkpoint_schedule.is_due(placed.version):
            snapshot = str(checkpoint_schedule.rank_state(placed.version))
        if command.finish:
            attempt.over.add(fragment)
        self._finishing = len(attempt.over) == len(replica.sizes)
        self._clock.begin(asyncio.get_running_loop().time(), joins=command.first)
        self.group.post_result(
            Result(
                fragment=fragment,
                place=placed.place,
                kind="full" if full else "delta",
                counted=command.kind == "counted",
                contributors=len(commit.contributors) if commit is not None else 1,
                version=placed.version,
                inner_step=inner_step,
                boundary_steps=early_steps(run, steps, joins=command.first),
                finish=command.finish,
                evaluate=self._finishing and self._evaluates,
                snapshot=snapshot,
                samples=self._lease if anchor else (),
            )
        )
        if not anchor:
            self._resume_waiting()  # No fragment may be left that needs steps, and so samples.

    @property
    def _evaluates(self) -> bool:
        """Whether this node makes the last evaluation: one node does, the peer with the lowest id
        of those that contributed to the last round or to the last steps. Its ranks are running; the
        leader's may not be."""
        core = self._daemon.core
        run_state, last = core.run_state, core.run_state.commits.get(ANCHOR)
        if last:
            made, view = {each.peer for each in last[-1].contributors}, last[-1].view
        elif run_state.views:
            made, view = set(run_state.views[-1].roster), run_state.views[-1].view
        else:
            return core.leads  # The run ended before its first round.
        return core.me.peer == min((x for x in made if run_state.counts(x, view)), default=None)

    async def wait_finished(self, timeout_s: float) -> None:
        """Wait, at most so many seconds, until the ranks have applied the last result, evaluated it
        and ended."""
        if self._step_shell is not None:
            self._step_shell.finish(evaluate=self._evaluates)
        if self._finishing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._finished.wait()

    # Events ---------------------------------------------------------------------------------

    def _on_event(self, event: r.RankEvent) -> None:
        daemon = self._daemon
        match event:
            case r.RanksLayout(tensors=tensors):
                self._check_layout(tensors)
            case r.RanksReady(attempt=attempt):
                daemon.event_log.write("ranks_ready", attempt=attempt)
                if self._initial is None or self._initial.done():
                    daemon.driver.feed(v.TrainersReady())
                elif self._step_shell is not None:
                    self._step_shell.found(self._founded)
            case r.RanksObeyed(number=number):
                if self._step_shell is not None:
                    self._step_shell.obeyed(number)
            case r.RankContribution():
                self._contribution(event)
            case r.RankMetrics():
                if event.rank == 0:
                    self.loss, self.tokens_per_s = event.loss, event.tokens_per_s
                    self.steps = self._counted_before[0] + event.step
                    self.tokens = self._counted_before[1] + event.tokens
            case r.RanksEvaluated(loss=loss, windows=windows, sample=sample):
                daemon.event_log.write("evaluated", loss=loss, windows=windows, sample=sample)
            case r.RanksSnapshotted(directory=directory):
                daemon.checkpoint_schedule.kept_rank_state = Path(directory)
            case r.RanksLost(attempt=attempt, why=why):
                daemon.event_log.write("ranks_lost", attempt=attempt, why=why)
                self._counted_before = (self.steps, self.tokens)
                self._attempt = _Attempt()
                self._keep_given()
                if self.group.slots is not None:
                    self._provide(self.group.slots)
                if self._step_shell is not None:
                    self._step_shell.ranks_lost()
                daemon.driver.feed(v.TrainersLost(why))
            case r.RanksFinished():
                self._finished.set()
            case r.StopAsked():
                daemon.driver.feed(v.LeaveRequested("asked to stop"))

    def _check_layout(self, tensors: tuple[TensorSpec, ...]) -> None:
        if self._layout is not None and not self._layout.done():
            self._layout.set_result(tensors)
        elif self._daemon.replica is not None:
            difference = layout_difference(self._daemon.replica.layout, tensors)
            if difference:
                self._daemon.stop(f"this node trains another model: {difference}", "refused")
                self.group.refuse(f"another model: {difference}")

    def _contribution(self, event: r.RankContribution) -> None:
        daemon, slots = self._daemon, self.group.slots
        assert slots is not None
        if not isinstance(daemon.replica, Replica):
            return  # The rank waits for an order in vain, and is restarted as hanging.
        local = slots.contribution(event.fragment)
        if self._initial is not None and not self._initial.done():
            self._digests[event.fragment] = daemon.replica.initialise(event.fragment, local)
            if len(self._digests) == len(daemon.replica.sizes):
                digests = tuple(digest for _, digest in sorted(self._digests.items()))
                self._initial.set_result(digests)
                daemon.driver.feed(v.TrainersReady())
            return
        if event.steps < 1 or event.tokens < 1:
            made = f"{event.steps} steps, {event.tokens} tokens"
            self.group.restart(f"they contribute {made}: a contribution needs at least one of each")
            return
        attempt = self._attempt
        before = attempt.uncounted.get(event.fragment, (0, 0))
        steps, tokens = before[0] + event.steps, before[1] + event.tokens
        if steps > CONTRIBUTION_STEPS_MAX or tokens > CONTRIBUTION_TOKENS_MAX:
            self.group.restart(
                f"they contribute {steps:,} steps, {tokens:,} tokens: at most "
                f"{CONTRIBUTION_STEPS_MAX:,} and {CONTRIBUTION_TOKENS_MAX:,} count in one round"
            )
            return
        attempt.uncounted[event.fragment] = (steps, tokens)
        daemon.replica.take_local(event.fragment, local)
        round_ = attempt.chosen.pop(event.fragment, None)
        line = daemon.mesh.line
        daemon.driver.feed(
            v.ContributionReady(event.fragment, tokens, steps, event.samples, round_, line)
        )
        daemon.event_log.write(
            "ready",
            fragment=event.fragment,
            round=daemon.core.run_state.committed(event.fragment) + 1 if round_ is None else round_,
            steps=event.steps,
            tokens=event.tokens,
        )

    def _keep_given(self) -> None:
        """If a contribution of the lost ranks is still needed, have the new ranks write theirs to
        the other place."""
        replica, slots = self._daemon.replica, self.group.slots
        if slots is None or not isinstance(replica, Replica):
            return
        for fragment in range(len(replica.sizes)):
            encoding = self._daemon.driver.data_plane.own.is_encoding(fragment)
            if replica.needs(fragment, slots.contribution(fragment), encoding=encoding):
                slots.contribute_elsewhere(fragment)

    def _decide_boundary(self, question: Boundary) -> Answer:
        """The fragment to which the ranks contribute now, or NONE if the round goes on. In a
        joiner's first round, and with a method that answers, the round ends early if other peers
        wait for this node."""
        rounds, now = self._daemon.core.rounds, asyncio.get_running_loop().time()
        fragment = next_fragment(rounds, question.left)
        over = question.due or self._clock.is_over(now, question.steps)
        if not over and self._clock.may_be_early(now):
            self._daemon.driver.feed(v.TrainersAble())
            over = rounds[fragment].others_wait
        if not over:
            return Answer(fragment=NONE)
        self._attempt.chosen[fragment] = rounds[fragment].next_round
        return Answer(fragment=fragment)
