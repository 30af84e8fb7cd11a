"""One peer's part in a stepwise run: a fixed roster exchanges payloads, and all get the same state.

A step is applied when the payloads of its whole roster are here; there is no vote. Steps are
tentative until a StepCommit: every peer keeps its last committed copy of the state (the base) and
the payloads since, and can make its state from them again. The machine is level-triggered as
rounds/fragment_rounds.py: inputs are remembered, then `advance` does everything that is possible. A
payload, or an answer of the ranks, wakes only the part that makes and applies the next step. Must
NOT decide what is committed or how a view ends (leader/step_views.py), nor touch bytes.
"""

from collections.abc import Set

from protocols.interface.commands import (
    ApplyStep,
    Command,
    LoadBase,
    ReleaseSteps,
)
from protocols.interface.events import BaseLoaded, StepApplied, StepReceived
from protocols.links.handshake import Identity
from protocols.messages import step_progress
from protocols.messages.log_entries import View
from protocols.messages.snapshot import ReturnedInView
from protocols.state.run_state import RunState
from protocols.state.step_entries import step_view
from protocols.steps.bounds import StepBounds, StepReach
from protocols.steps.kept_copy import NONE, KeptCopy
from protocols.steps.own_payloads import OwnPayloads
from protocols.steps.payload_fetch import FETCH_STEPS, PayloadFetch
from protocols.steps.payloads import Payloads
from protocols.steps.rank_state import RankState
from protocols.steps.step_position import StepReports
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Stamp


class FastPath:
    """Whether the next step can be made without a full pass, which is most of the cost of a small
    step."""

    def __init__(self) -> None:
        self.steady: StepReach | None = None
        """The reach, if the last pass found a steady run; None otherwise."""
        self.woken = True
        """Something other than a payload or an answer has changed, the log or the leader for
        example: a full pass is needed."""
        self.awake = False
        """A payload came on which the core can act."""
        self.recheck = False
        """The log went on while a step was being applied."""

    def begin_pass(self) -> bool:
        """A full pass begins; True if it was needed."""
        woken, self.woken, self.awake = self.woken, False, False
        return woken


class StepMachine:
    """The steps of one peer: held payloads, its state, and its reports."""

    def __init__(self, me: Identity, run_state: RunState) -> None:
        self.run_state = run_state
        self.bounds = StepBounds(me, run_state)
        self.ranks = RankState()
        self.copy = KeptCopy(run_state)
        self.own = OwnPayloads(me.peer, self.bounds)
        self.payloads = Payloads()
        self.payload_fetch = PayloadFetch(self.bounds)
        self.able = False
        """At the last check the ranks could make steps with the others: they are up to date, or
        soon will be."""
        self.fast_path = FastPath()
        self._returned: ReturnedInView | None = None
        """The last exclusion of this peer by the log."""
        self._pruned = (0, NONE)
        """(log index, floor) at the last removal of payloads."""
        self.reports = StepReports(me, run_state, self.bounds)

    # Inputs ---------------------------------------------------------------------------------

    def received(self, event: StepReceived) -> bool:
        """True if the payload is to be kept (I3)."""
        stamp, maker = event.stamp, event.peer
        fast_path, ranks = self.fast_path, self.ranks
        steady, ahead = fast_path.steady, stamp.round - ranks.version
        # It is two steps ahead: its sender has made the step that we are making.
        near = ahead == 1 or (ahead == 2 and ranks.applying is not None)
        usual = near and steady is not None and not fast_path.woken and steady.is_ours(event)
        if not usual:  # The full check: the log admits it, and it was not sent unasked.
            expected = self.expects(stamp, event.sender, maker)
            if not (expected and self.bounds.is_of_roster(event)):
                return False
        kept = self.payloads.add(stamp.view, stamp.round, maker, event.digest)
        if usual and steady is not None:
            if ahead == 1:
                held = self.payloads.of_step(stamp.view, stamp.round)
                fast_path.awake = len(held) == len(steady.view.roster)
            return kept
        fast_path.steady = None
        progress = self.run_state.step_progress
        if ranks.version < progress.step:
            fast_path.woken = True  # Whether the committed step is in reach must be reported.
        waits = ranks.version >= 0 and self.bounds.lacks(ranks.version + 1, stamp, self.payloads)
        fast_path.awake = fast_path.woken or not waits
        return kept

    def applied(self, event: StepApplied) -> None:
        """The ranks have the state after the step."""
        ranks, fast_path = self.ranks, self.fast_path
        if event.stamp != ranks.applying:
            return  # The ranks had to go back meanwhile.
        step, view = event.stamp.round, event.stamp.view
        ranks.applying = None
        own, progress = self.own, self.run_state.step_progress
        told = fast_path.recheck or progress.halted > 0
        fast_path.recheck = False
        ranks.become(step, event.state_digest, view=view)
        # If the ranks go back, the payload is sent again.
        own.sent.pop((view, step - 1), None)
        told = self.copy.stepped(view, step, event.state_digest) or told
        fast_path.woken = fast_path.woken or told

    def loaded(self, event: BaseLoaded) -> bool:
        """The ranks have loaded the base; False if its digest differs."""
        copy, ranks = self.copy, self.ranks
        if not ranks.loading or event.step != copy.step:
            return True  # It is of ranks that are gone.
        ranks.loading, self.fast_path.steady = False, None
        if event.state_digest != copy.digest:
            copy.step = NONE
            return False
        ranks.become(copy.step, copy.digest, view=0)
        return True

    def state_received(self, step: int, digest: str) -> list[Command]:
        """A copy of the run's state is here, from this peer or from a donor."""
        self._void()
        self.payload_fetch.over()
        self.copy.replace(step, digest)
        return [ReleaseSteps(step)]

    def trainers_lost(self) -> None:
        """The ranks are lost, and their state with them. Payloads are not: new ranks apply them
        again."""
        self.ranks.clear()
        self.fast_path.steady, self.own.making = None, None

    def restored(self) -> None:
        """The run went back to another version: state and payloads are void."""
        self._void()
        self.copy.clear()
        self._returned = None
        self.payloads, self.payload_fetch = Payloads(), PayloadFetch(self.bounds)
        self.reports.clear()

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: payloads that it may lack are sent again."""
        self.own.forget(peer)

    def forget_reports(self) -> None:
        """There is a new leader, or a new term: it gets all reports again."""
        self.reports.clear()
        stall = self.reports.stall
        stall.over()

    # Queries --------------------------------------------------------------------------------

    def expects(self, stamp: Stamp, sender: PeerId, maker: PeerId) -> bool:
        """May a payload of this step come now? All others are refused (I3). The payload of a third
        peer is accepted only from a peer that was asked for it: the first payload stays, and it
        might be forged."""
        run = self.bounds.run
        if (stamp.run, stamp.lineage) != (run.run, self.run_state.lineage):
            return False
        if sender != maker and not self.payload_fetch.has_asked(sender, stamp.round, maker):
            return False
        return self._floor < stamp.round <= self.bounds.limit

    @property
    def finished(self) -> bool:
        """The last step is committed, and the state after it is here."""
        run = self.bounds.run
        return self.copy.step >= run.outer_steps

    @property
    def behind(self) -> bool:
        """Missing payloads cannot be had any more, or our copy leads astray: a transfer is
        needed."""
        if self.copy.awaited is not None:
            return False
        ours = max(self.ranks.version, self.copy.step)
        return self.copy.strayed or self.payload_fetch.is_hopeless(ours)

    @property
    def deadline(self) -> float:
        """The next time at which `advance` has to run without an event."""
        stall = self.reports.stall
        return min(self.payload_fetch.at, stall.at)

    def missing(self) -> tuple[PeerId, ...]:
        """The peers that the next step waits for, as this peer sees it."""
        step = self.ranks.version + 1
        view = step_view(self.run_state, step)
        lacking = self.payloads.missing(view, step) if view is not None else ()
        return tuple(peer for peer in lacking if peer != self.own.me)

    # Next actions ---------------------------------------------------------------------------

    def go_on(self, now: float) -> list[Command] | None:
        """The next step of a steady run. None: the run is not steady, and a full pass is needed.
        The commands are those of `advance`, without its checks; sims/simulator/twin_cores.py
        compares the two."""
        fast_path, ranks = self.fast_path, self.ranks
        reach = fast_path.steady
        if reach is None or fast_path.woken:
            return None
        fast_path.awake = False
        step, view, applying = ranks.version + 1, reach.view, ranks.applying is not None
        commands = self.own.make(reach, step, self.payloads, applying=applying)
        if self.own.unsent:
            commands += self.own.send(view, step, self.payloads)
        if applying:
            return commands
        held = self.payloads.of_step(view.view, step)
        if len(held) == len(view.roster) and step <= reach.last:
            commands += self._apply(view, reach)
        elif self.own.me in held:
            stall = self.reports.stall
            stall.is_slow(self.bounds.stamp(view.view, step), now)  # The wait begins.
        return commands

    def advance(
        self, now: float, connected: Set[PeerId], leader: PeerId | None, *, ready: bool
    ) -> list[Command]:
        """Do everything that is possible and not done yet. `ready`: the ranks can be given a
        state."""
        woken = self.fast_path.begin_pass()
        commands = self._follow() if woken else []
        copy, ranks = self.copy, self.ranks
        if ready and ranks.version < 0 <= copy.step and not (ranks.loading or copy.strayed):
            ranks.loading = True
            commands.append(LoadBase(copy.step))
        reach = self.bounds.reach
        if reach is not None:
            own, payloads, step = self.own, self.payloads, ranks.version + 1
            commands += own.make(reach, step, payloads, applying=ranks.applying is not None)
            if woken:
                receivers = self.run_state.receivers
                own.receivers = tuple(sorted(connected & receivers.keys()))
                commands += own.send(reach.view, ranks.version, payloads)
            if woken or own.unsent:
                commands += own.send(reach.view, step, payloads)
        last = self.bounds.last
        frontier = last if last is not None else self.bounds.frontier(copy.completed)
        if ranks.applying is None and 0 <= ranks.version < frontier:
            commands += self._apply(step_view(self.run_state, ranks.version + 1), reach)
        first = 1 + (max(ranks.version, copy.step) if copy.awaited is None else copy.awaited)
        highest = self.bounds.highest(self.payloads)
        if 0 < first <= highest:
            commands += self.payload_fetch.ask(first, self.payloads, now, connected)
        else:
            self.payload_fetch.over()  # The usual case.
        near = ranks.version + FETCH_STEPS
        reaches = near >= highest or self.bounds.reach_target(near, self.payloads)
        self.able = ranks.version >= 0 and reaches
        steady = self.able and copy.awaited is None and self.payload_fetch.at == NEVER
        if reach is not None:  # Have the ranks the committed state?
            progress = self.run_state.step_progress
            agreed = progress.step
            steady = steady and ranks.version >= max(agreed, copy.step, reach.begun) >= 0
        self.fast_path.steady = reach if steady else None
        if woken:
            self.fast_path.recheck = ranks.applying is not None
            commands += self.reports.news(leader, self)
        view = reach.view if reach is not None else None
        return commands + self.reports.waiting(self, view, now, leader)

    def _follow(self) -> list[Command]:
        """Drop steps that the log made void; take a newly committed step as the base."""
        run_state, copy, ranks = self.run_state, self.copy, self.ranks
        agreed = run_state.step_progress
        returned = run_state.returned.get(self.own.me)
        if returned != self._returned:
            self._returned = returned
            self._void()  # Our state may be wrong, which is why we were excluded.
        view = step_view(run_state, ranks.version) if ranks.version > copy.step else None
        close = agreed.close
        beyond = close is not None and ranks.version > max(close.last_step, copy.step)
        if (view is not None and view.view != ranks.view) or beyond:
            self._void()  # The others ended that view before this step.
        differs, commands = copy.compare()
        if differs:
            self._void()
        if copy.awaited is None:  # Else another base is coming: keep the payloads after it.
            commands += copy.follow()
        self._prune()
        return commands

    def _prune(self) -> None:
        floor = self._floor
        self.own.prune(self.bounds.newest, self.ranks.version)
        if self._pruned == (self.run_state.index, floor):
            return  # It depends on nothing else, and new payloads are checked when they arrive.
        self._pruned = (self.run_state.index, floor)
        self.payloads.prune(lambda view, step: self.bounds.fits(view, step, floor))
        self.payload_fetch.prune(floor)
        self.copy.prune()

    def _apply(self, view: View | None, reach: StepReach | None) -> list[Command]:
        """Have the ranks apply the next step of this view as soon as all of its payloads are
        here."""
        step = self.ranks.version + 1
        held = self.payloads.of_step(view.view, step) if view is not None else {}
        if view is None or len(held) < len(view.roster):
            return []
        terms = tuple([(peer, held[peer]) for peer in view.roster if peer in held])
        if len(terms) < len(view.roster):
            return []  # Some are of peers that joined later: their sender has read more of the log.
        self.ranks.applying = stamp = self.bounds.stamp(view.view, step)
        following = None
        if reach is not None and view is reach.view and self.copy.awaited is None:
            following = self.own.following(reach, step)
        keeps = step_progress.keeps(self.bounds.run, step)
        return [ApplyStep(stamp, terms, keeps, following)]

    # Helpers --------------------------------------------------------------------------------

    @property
    def _floor(self) -> int:
        copy = self.copy
        return self.bounds.floor(copy.step if copy.awaited is None else copy.awaited)

    def _void(self) -> None:
        """Our steps since the last commit are void: go back to the base, and on from there with the
        payloads that count."""
        self.ranks.clear()
        self.fast_path.steady = None
        self.own.void()
        self.copy.void()
