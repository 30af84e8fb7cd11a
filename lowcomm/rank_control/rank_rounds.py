"""The node's ranks in a run of rounds: takes their contributions, gives them results and samples.

It stands between peers.ranks.rank_group (processes and shared memory) and the core. Must NOT
communicate with peers.
"""

import asyncio
from dataclasses import dataclass, field

from lowcomm.config.round_length import early_steps, round_steps
from lowcomm.config.schema import RunConfig
from lowcomm.methods import RoundMethod
from lowcomm.outer_state.replica import Replica
from lowcomm.rank_control.context import DaemonContext
from lowcomm.rank_control.round_clock import RoundClock
from lowcomm.startup.agreement import Demand, accepted, interval_samples
from lowcomm.training.round_schedule import ANCHOR
from peers.ipc import NONE, Answer, Boundary, Result
from peers.ranks import RankGroup
from peers.ranks import events as r
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.peer import PeerCore
from protocols.rounds import next_fragment
from protocols.types import CONTRIBUTION_STEPS_MAX, CONTRIBUTION_TOKENS_MAX, Samples, count


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
    awaits_lease: bool = False
    """The ranks have asked for a lease, and wait for it."""
    chosen: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment to which the ranks were told to contribute, the round that was open then."""


class RankRounds:
    """What the ranks have contributed, and the results and samples that they get for it."""

    def __init__(self, context: DaemonContext, group: RankGroup) -> None:
        self.clock = RoundClock(0.0)
        self.finishing = False
        """The ranks have the last result of every fragment, and end by themselves."""
        self.evaluated_round = 0
        """The round of fragment 0 after which the ranks evaluate, or did last."""
        self._context, self._core, self._run_state = context, context.core, context.core.run_state
        self._group = group
        self._lease: Samples = ()
        """Samples that the ranks may draw."""
        self._demand: Demand | None = None
        """Samples that the ranks draw, if they have said it: also of later attempts."""
        self._attempt = _Attempt()

    def leased(self, command: c.Leased) -> None:
        """The set of samples that the ranks may draw has changed."""
        self._lease = command.samples
        self._grant()
        self._resume_waiting()

    def demanded(self, event: r.RanksDemand) -> None:
        """The ranks ask for a lease, and say how many samples they draw."""
        run = self._context.run_config
        assert run is not None
        if not isinstance(run.method, RoundMethod):
            self._group.restart("they ask for a lease, which a stepwise run does not have")
            return
        self._demand = Demand(event.step_samples, event.ahead)
        self._attempt.awaits_lease = True
        self._context.driver.feed(accepted(run, self._demand))
        self._grant()

    def _grant(self) -> None:
        """Give the ranks the lease for which they wait, once it suffices for a round."""
        run = self._context.run_config
        if run is None or not self._attempt.awaits_lease:
            return
        steps = round_steps(run, self._run_state.inner_step)
        if count(self._lease) >= interval_samples(run, steps, self._demand):
            self._attempt.awaits_lease = False
            self._group.grant(self._lease)

    def _resume_waiting(self) -> None:
        """Give the ranks the waiting results that need not wait any more."""
        waiting, self._attempt.waiting = self._attempt.waiting, []
        for resume in waiting:
            self.resume(resume)

    def resume(self, command: c.Resume) -> None:
        """Give the ranks a result, and the samples to train until the next one."""
        replica, run = self._context.replica, self._context.run_config
        assert isinstance(replica, Replica), "a stepwise run has no rounds"
        assert run is not None
        fragment, anchor = command.fragment, command.fragment == ANCHOR
        run_state, attempt = self._run_state, self._attempt
        inner_step = run_state.inner_step
        steps = round_steps(run, inner_step)
        needed = interval_samples(run, steps, self._demand)
        rounds = self._core.rounds
        last = command.finish and all(x.needs_no_steps for x in rounds if x.fragment != ANCHOR)
        if anchor and count(self._lease) < needed and not last:
            # After a rollback, for example. Rounds applied meanwhile will be in the result too.
            attempt.waiting.append(command)
            return
        if fragment in attempt.over and not command.finish:
            attempt.over.clear()
            self._group.restart("the run was rolled back to before the last result of a fragment")
            return
        checkpoint_schedule = self._context.checkpoint_schedule
        full = command.kind != "rebase" or command.finish  # The last result is always full.
        trimmed = replica.method.trims and command.kind == "counted" and not command.finish
        if (trimmed or not full) and not replica.contributions.is_finite(fragment):
            # No delta makes them finite, and the optimizer's state is not finite by now either.
            checkpoint_schedule.kept_rank_state = None
            self._group.restart("their parameters are not finite: new ranks start from the run's")
            return
        # If the result has waited, it contains later rounds too: the fields below describe those.
        placed = replica.place_result(fragment, full=full)
        if full:
            attempt.uncounted.pop(fragment, None)
        commit, snapshot = run_state.commit(fragment, placed.version), ""
        if full and anchor and not command.finish and checkpoint_schedule.is_due(placed.version):
            snapshot = str(checkpoint_schedule.fresh_rank_state(placed.version))
        if command.finish:
            attempt.over.add(fragment)
        self.finishing = len(attempt.over) == len(replica.sizes)
        evaluates = self.finishing and makes_evaluation(self._core)
        if anchor and not command.finish:
            evaluates = _evaluates_now(self._core, run, placed.version)
        if evaluates:
            anchors = run_state.commits.get(ANCHOR)
            self.evaluated_round = (
                anchors[-1].round if self.finishing and anchors else placed.version
            )
        self.clock.begin_round(asyncio.get_running_loop().time(), joins=command.first)
        self._group.post_result(
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
                evaluate=evaluates,
                snapshot=snapshot,
                samples=self._lease if anchor else (),
            )
        )
        if not anchor:
            self._resume_waiting()  # No fragment may be left that needs steps, and so samples.

    def contributed(self, event: r.RankContribution, replica: Replica, local: memoryview) -> None:
        """The ranks have written a contribution to `local`: tell the core."""
        if event.steps < 1 or event.tokens < 1:
            self._group.restart(
                f"they contribute {event.steps} steps, {event.tokens} tokens: a contribution needs "
                "at least one of each"
            )
            return
        attempt = self._attempt
        before = attempt.uncounted.get(event.fragment, (0, 0))
        steps, tokens = before[0] + event.steps, before[1] + event.tokens
        if steps > CONTRIBUTION_STEPS_MAX or tokens > CONTRIBUTION_TOKENS_MAX:
            self._group.restart(
                f"they contribute {steps:,} steps, {tokens:,} tokens: at most "
                f"{CONTRIBUTION_STEPS_MAX:,} and {CONTRIBUTION_TOKENS_MAX:,} count in one round"
            )
            return
        attempt.uncounted[event.fragment] = (steps, tokens)
        replica.contributions.take_local(event.fragment, local)
        context, core = self._context, self._context.core
        round_ = attempt.chosen.pop(event.fragment, None)
        line = context.mesh.line
        context.driver.feed(
            v.ContributionReady(event.fragment, tokens, steps, event.samples, round_, line)
        )
        context.event_log.write(
            "ready",
            fragment=event.fragment,
            round=core.run_state.committed(event.fragment) + 1 if round_ is None else round_,
            steps=event.steps,
            tokens=event.tokens,
        )

    def ranks_lost(self) -> None:
        """New ranks begin without anything that the lost ones had or waited for."""
        self._attempt = _Attempt()
        self._keep_given()

    def _keep_given(self) -> None:
        """If a contribution of the lost ranks is still needed, have the new ranks write theirs to
        the other place."""
        replica, slots = self._context.replica, self._group.slots
        driver = self._context.driver
        if slots is None or not isinstance(replica, Replica):
            return
        for fragment in range(len(replica.sizes)):
            own = driver.data_plane.own
            encoding = own.is_encoding(fragment)
            local = slots.contribution(fragment)
            if replica.contributions.needs(fragment, local, encoding=encoding):
                slots.contribute_elsewhere(fragment)

    def decide_boundary(self, question: Boundary) -> Answer:
        """The fragment to which the ranks contribute now, or NONE if the round goes on. In a
        joiner's first round, and with a method that answers, the round ends early if other peers
        wait for this node."""
        works = [rounds.work for rounds in self._core.rounds]
        now, fragment = asyncio.get_running_loop().time(), next_fragment(works, question.left)
        over = question.due or self.clock.is_over(now, question.steps)
        if not over and self.clock.may_be_early(now):
            driver = self._context.driver
            driver.feed(v.TrainersAble())
            over = works[fragment].others_wait
        if not over:
            return Answer(fragment=NONE)
        self._attempt.chosen[fragment] = works[fragment].next_round
        return Answer(fragment=fragment)


def _evaluates_now(core: PeerCore, run: RunConfig, round_: int) -> bool:
    """Whether this node's ranks evaluate their parameters after a round that is not the last one:
    those of the peer with the lowest id of its contributors do, if it is due. With a method that
    overlaps rounds these are the ranks' own parameters, not the result of the round."""
    every, commit = run.data.eval_every_rounds, core.run_state.commit(ANCHOR, round_)
    if not every or round_ % every or commit is None:
        return False
    return core.me.peer == min(each.peer for each in commit.contributors)


def makes_evaluation(core: PeerCore) -> bool:
    """Whether this node makes the last evaluation: one node does, the peer with the lowest id of
    those that contributed to the last round or to the last steps. Its ranks are running; the
    leader's may not be."""
    run_state = core.run_state
    last = run_state.commits.get(ANCHOR)
    if last:
        made, view = {each.peer for each in last[-1].contributors}, last[-1].view
    elif run_state.views:
        made, view = set(run_state.views[-1].roster), run_state.views[-1].view
    else:
        return core.leads  # The run ended before its first round.
    return core.me.peer == min((x for x in made if run_state.counts(x, view)), default=None)
