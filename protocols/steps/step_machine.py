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
    MakeStep,
    Note,
    ReleaseSteps,
    Send,
    SendStep,
)
from protocols.interface.events import BaseLoaded, StepApplied, StepMade, StepReceived
from protocols.links.handshake import Identity
from protocols.messages import step_progress
from protocols.messages.log_entries import View
from protocols.messages.peer import FetchSteps, Waiting
from protocols.messages.snapshot import ReturnedInView
from protocols.rounds.retries import StallReport
from protocols.state.run_state import RunState
from protocols.state.step_entries import step_view
from protocols.steps.bounds import StepBounds, StepReach
from protocols.steps.payload_fetch import FETCH_STEPS, PayloadFetch
from protocols.steps.payloads import Payloads
from protocols.steps.step_position import StepReports
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Stamp

NONE = -1


class StepMachine:
    """The steps of one peer: held payloads, its state, and its reports."""

    def __init__(self, me: Identity, run_state: RunState) -> None:
        self.me = me.peer
        self.run_state = run_state
        self.bounds = StepBounds(me, run_state)
        self.version = NONE
        """The step of the ranks' state; NONE if they have none."""
        self.state_digest = ""
        self.base = NONE
        """The step of the kept copy of the state."""
        self.base_digest = ""
        self.awaited: int | None = None
        """The step of the state that a transfer brings."""
        self.applying: Stamp | None = None
        self.own: StepMade | None = None
        """The newest payload of this peer's ranks."""
        self.payloads = Payloads()
        self.digests: dict[int, tuple[int, str]] = {}
        """By step since the base, (view, state digest) of steps that all peers report."""
        self.damaged = False
        """The copy differs from its digest: it is not reported until it is replaced."""
        self.stall, self.payload_fetch = StallReport(), PayloadFetch(self.bounds)
        self.able = False
        """At the last check the ranks could make steps with the others: they are up to date, or
        soon will be."""
        self.woken = True
        """Something other than a payload or an answer has changed, the log or the leader for
        example: a full pass is needed."""
        self.awake = False
        """A payload came on which the core can act."""
        self._steady: StepReach | None = None
        """The reach, if the last pass found a steady run; None otherwise."""
        self._unsent = True
        """A peer may lack our newest payloads."""
        self._recheck = False
        """The log went on while a step was being applied."""
        self._at = 0
        """The view in which `version` was made; 0 if it is the base."""
        self._reached = (0, NONE)
        """(view, step) of the furthest completed step, even if the ranks must make it again."""
        self._loading = False
        self.making: MakeStep | None = None
        """The payload that the ranks are making."""
        self._strays = 0
        """How often our copy led to another state than the committed one. Once may be a memory
        error; then the copy is not given to others until it has led to a committed state."""
        self._returned: ReturnedInView | None = None
        """The last exclusion of this peer by the log."""
        self.sent: dict[tuple[int, int], set[PeerId]] = {}
        """By (view, step), the receivers of our payloads, each on its present connection."""
        self._receivers: tuple[PeerId, ...] = ()
        """The connected peers that get our payloads, in order."""
        self._pruned = (0, NONE)
        """(log index, floor) at the last removal of payloads."""
        self._reports = StepReports(me, run_state, self.bounds)

    # Inputs ---------------------------------------------------------------------------------

    def received(self, event: StepReceived) -> bool:
        """True if the payload is to be kept (I3)."""
        stamp, whose = event.stamp, event.peer
        steady, ahead = self._steady, stamp.round - self.version
        # It is two steps ahead: its sender has made the step that we are making.
        near = ahead == 1 or (ahead == 2 and self.applying is not None)
        usual = near and steady is not None and not self.woken and steady.is_ours(event)
        if not (usual or self._is_expected(event)):
            return False
        kept = self.payloads.add(stamp.view, stamp.round, whose, event.digest)
        if usual and steady is not None:
            if ahead == 1:
                held = self.payloads.of(stamp.view, stamp.round)
                self.awake = len(held) == len(steady.view.roster)
            return kept
        self._steady = None
        if self.version < self.run_state.step_progress.step:
            self.woken = True  # Whether the committed step is in reach must be reported.
        waits = self.version >= 0 and self.bounds.lacks(self.version + 1, stamp, self.payloads)
        self.awake = self.woken or not waits
        return kept

    def _is_expected(self, event: StepReceived) -> bool:
        """The full check: the log admits its step and roster, and it was not sent unasked."""
        expected = self.expects(event.stamp, event.sender, event.peer)
        return expected and self.bounds.is_of_roster(event)

    def made(self, event: StepMade) -> None:
        """The ranks have made a payload; its bytes are the same for every view."""
        making = self.making
        if making is not None and making.step == event.step and making.batch == event.batch:
            self.making, self.own = None, event

    def applied(self, event: StepApplied) -> None:
        """The ranks have the state after the step."""
        if event.stamp != self.applying:
            return  # The ranks had to go back meanwhile.
        step, view = event.stamp.round, event.stamp.view
        self.applying = None
        told = self._recheck or self.run_state.step_progress.halted > 0
        self._recheck = False
        self.version, self.state_digest, self._at = step, event.state_digest, view
        self.sent.pop((view, step - 1), None)  # If the ranks go back, the payload is sent again.
        if step > self._reached[1] or self._reached[0] != view:
            self._reached = (view, step)
        if step_progress.commits(self.bounds.run, step):
            self.digests[step] = (view, event.state_digest)
            told = True
        self.woken = self.woken or told

    def loaded(self, event: BaseLoaded) -> bool:
        """The ranks have loaded the base; False if its digest differs."""
        if not self._loading or event.step != self.base:
            return True  # It is of ranks that are gone.
        self._loading, self._steady = False, None
        if event.state_digest != self.base_digest:
            self.base = NONE
            return False
        self.version, self.state_digest, self._at = self.base, self.base_digest, 0
        return True

    def state_received(self, step: int, digest: str) -> list[Command]:
        """A copy of the run's state is here, from this peer or from a donor."""
        self._void()
        self.payload_fetch.over()
        same = (step, digest) == (self.base, self.base_digest)
        self._strays = min(self._strays, 1) if same else 0
        self.base, self.base_digest, self.awaited, self.damaged = step, digest, None, False
        self._reached, self.digests = (0, step), {}
        return [ReleaseSteps(step)]

    def trainers_lost(self) -> None:
        """The ranks are lost, and their state with them. Payloads are not: new ranks apply them
        again."""
        self.version, self.applying, self._steady = NONE, None, None
        self._loading, self.making = False, None

    def restored(self) -> None:
        """The run went back to another version: state and payloads are void."""
        self._void()
        self.base, self.base_digest, self.awaited, self.damaged = NONE, "", None, False
        self._reached, self._returned, self._strays = (0, NONE), None, 0
        self.payloads, self.digests, self.payload_fetch = Payloads(), {}, PayloadFetch(self.bounds)
        self._reports.clear()

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: payloads that it may lack are sent again."""
        for peers in self.sent.values():
            peers.discard(peer)

    def forget_reports(self) -> None:
        """There is a new leader, or a new term: it gets all reports again."""
        self._reports.clear()
        self.stall.over()

    def fetched(self, peer: PeerId, message: FetchSteps) -> list[Command]:
        """A peer asks for payloads; send those that are here."""
        return self.payload_fetch.give(peer, message, self.payloads)

    # Queries --------------------------------------------------------------------------------

    def expects(self, stamp: Stamp, sender: PeerId, whose: PeerId) -> bool:
        """May a payload of this step come now? All others are refused (I3). The payload of a third
        peer is accepted only from a peer that was asked for it: the first payload stays, and it
        might be forged."""
        if (stamp.run, stamp.lineage) != (self.bounds.run.run, self.run_state.lineage):
            return False
        if sender != whose and not self.payload_fetch.has_asked(sender, stamp.round, whose):
            return False
        return self._floor < stamp.round <= self.bounds.limit

    @property
    def finished(self) -> bool:
        """The last step is committed, and the state after it is here."""
        return self.base >= self.bounds.run.outer_steps

    @property
    def strayed(self) -> bool:
        """The committed state cannot be reached from our copy."""
        return self._strays > 1

    @property
    def behind(self) -> bool:
        """Missing payloads cannot be had any more, or our copy leads astray: a transfer is
        needed."""
        if self.awaited is not None:
            return False
        return self.strayed or self.payload_fetch.is_hopeless(max(self.version, self.base))

    @property
    def completed(self) -> int:
        """The furthest completed step that the log has not made void."""
        view, step = self._reached
        owner = step_view(self.run_state, step)
        stands = step <= self.base or (owner is not None and owner.view == view)
        return max(step, self.base) if stands else self.base

    @property
    def sure(self) -> bool:
        """Our copy is the run's state after its step, as far as this peer knows."""
        return not (self._strays or self.damaged)

    @property
    def frontier(self) -> int:
        """The last step that this peer may complete now."""
        last = self.bounds.last
        return last if last is not None else self.bounds.frontier(self.completed)

    @property
    def deadline(self) -> float:
        """The next time at which `advance` has to run without an event."""
        return min(self.payload_fetch.at, self.stall.at)

    def missing(self) -> tuple[PeerId, ...]:
        """The peers that the next step waits for, as this peer sees it."""
        view = step_view(self.run_state, self.version + 1)
        lacking = self.payloads.missing(view, self.version + 1) if view is not None else ()
        return tuple(peer for peer in lacking if peer != self.me)

    # Next actions ---------------------------------------------------------------------------

    def go_on(self, now: float) -> list[Command] | None:
        """The next step of a steady run, which is most of the cost of a small step. None: the run
        is not steady, and a full pass is needed. The commands are those of `advance`, without its
        checks; sims/simulator/twin_cores.py compares the two."""
        reach = self._steady
        if reach is None or self.woken:
            return None
        self.awake = False
        commands = self._make(reach)
        if self._unsent:
            commands += self._send(reach.view, self.version + 1)
        if self.applying is not None:
            return commands
        step, view = self.version + 1, reach.view
        held = self.payloads.of(view.view, step)
        if len(held) == len(view.roster) and step <= reach.last:
            commands += self._apply(view, reach)
        elif self.me in held:
            self.stall.is_slow(self.bounds.stamp(view.view, step), now)  # The wait begins.
        return commands

    def advance(
        self,
        now: float,
        connected: Set[PeerId],
        leader: PeerId | None,
        *,
        ready: bool,
    ) -> list[Command]:
        """Do everything that is possible and not done yet. `ready`: the ranks can be given a
        state."""
        woken, self.woken, self.awake = self.woken, False, False
        commands = self._follow() if woken else []
        if ready and self.version < 0 <= self.base and not (self._loading or self.strayed):
            self._loading = True
            commands.append(LoadBase(self.base))
        reach = self.bounds.reach
        if reach is not None:
            commands += self._make(reach)
            if woken:
                self._receivers = tuple(sorted(connected & self.run_state.receivers.keys()))
                commands += self._send(reach.view, self.version)
            if woken or self._unsent:
                commands += self._send(reach.view, self.version + 1)
        if self.applying is None and 0 <= self.version < self.frontier:
            commands += self._apply(step_view(self.run_state, self.version + 1), reach)
        first = max(self.version, self.base) + 1 if self.awaited is None else self.awaited + 1
        highest = self.bounds.highest(self.payloads)
        if 0 < first <= highest:
            commands += self.payload_fetch.ask(first, self.payloads, now, connected)
        else:
            self.payload_fetch.over()  # The usual case.
        near = self.version + FETCH_STEPS
        reaches = near >= highest or self.bounds.reach_target(near, self.payloads)
        self.able = self.version >= 0 and reaches
        steady = self.able and self.awaited is None and self.payload_fetch.at == NEVER
        self._steady = reach if steady and self._is_up_to_date(reach) else None
        if woken:
            self._recheck = self.applying is not None
            commands += self._reports.news(leader, self)
        return commands + self._complain(reach, now, leader)

    def _is_up_to_date(self, reach: StepReach | None) -> bool:
        """The ranks have the committed state."""
        agreed = self.run_state.step_progress.step
        return reach is not None and self.version >= max(agreed, self.base, reach.begun) >= 0

    def _follow(self) -> list[Command]:
        """Drop steps that the log made void; take a newly committed step as the base."""
        run_state, agreed, commands = self.run_state, self.run_state.step_progress, list[Command]()
        returned = run_state.returned.get(self.me)
        if returned != self._returned:
            self._returned = returned
            self._void()  # Our state may be wrong, which is why we were excluded.
        view = step_view(run_state, self.version) if self.version > self.base else None
        if (view is not None and view.view != self._at) or self._beyond_end:
            self._void()  # The others ended that view before this step.
        for step, digest in ((agreed.base, agreed.base_digest), (agreed.step, agreed.digest)):
            made_in, ours = self.digests.get(step, (0, ""))
            if ours == digest and step > self.base:
                self._strays = 0
            elif ours not in ("", digest):
                owner = step_view(run_state, step)
                if owner is not None and owner.view == made_in:
                    text = f"our state at step {step} is not the one that is committed"
                    commands.append(Note("diverged", text))
                    self._strays += 1
                self._void()
                self.digests.pop(step, None)
        stay = self.awaited is not None  # Another base is coming: keep the payloads after it.
        if agreed.base > self.base >= 0 and agreed.base in self.digests and not stay:
            self.base, (_, self.base_digest) = agreed.base, self.digests[agreed.base]
            self._strays = 0
            commands.append(ReleaseSteps(self.base))
        self._prune()
        return commands

    @property
    def _beyond_end(self) -> bool:
        close = self.run_state.step_progress.close
        return close is not None and self.version > max(close.last_step, self.base)

    def _prune(self) -> None:
        newest, floor = self.bounds.newest, self._floor
        for key in [x for x in self.sent if x[0] != newest or x[1] < self.version]:
            del self.sent[key]
        if self._pruned == (self.run_state.index, floor):
            return  # `fits` depends on nothing else, and new payloads are checked when they arrive.
        self._pruned = (self.run_state.index, floor)

        def fits(view: int, step: int) -> bool:
            owner = step_view(self.run_state, step)
            return step > floor and (view > newest or (owner is not None and owner.view == view))

        self.payloads.prune(fits)
        self.payload_fetch.prune(floor)
        for step in [step for step in self.digests if step < self.base]:
            del self.digests[step]

    def _make(self, reach: StepReach) -> list[Command]:
        """Have the ranks make their payload as soon as they have the state for it."""
        step, view = self.version + 1, reach.view.view
        if not reach.begun < step <= reach.last:
            return []
        own, batch = self.own, reach.batch(step)
        if own is not None and own.step == step and own.batch == batch:
            if self.me not in self.payloads.of(view, step):
                self.payloads.add(view, step, self.me, own.digest)
                self._unsent = True
            return []
        making = self.making
        same = making is not None and making.step == step and making.batch == batch
        if same or self.applying is not None:
            return []
        self.making = MakeStep(step, batch)
        return [self.making]

    def _send(self, view: View, step: int) -> list[Command]:
        """Send our payload of a step to all other peers of the roster, since none can go on without
        it.

        Over a new connection also the payload of the step before: a roster is never more than one
        step apart.
        """
        self._unsent = False
        digest = self.payloads.of(view.view, step).get(self.me)
        if self.version < 0 or digest is None:
            return []
        stamp, lacking = self.bounds.stamp(view.view, step), self._receivers
        sent = self.sent.get((view.view, step))
        if sent is None:
            self.sent[view.view, step] = set(lacking)
        else:
            lacking = tuple(peer for peer in lacking if peer not in sent)
            sent.update(lacking)
        return [SendStep(lacking, stamp, self.me, digest)] if lacking else []

    def _apply(self, view: View | None, reach: StepReach | None) -> list[Command]:
        """Have the ranks apply the next step of this view as soon as all of its payloads are
        here."""
        step = self.version + 1
        held = self.payloads.of(view.view, step) if view is not None else {}
        if view is None or len(held) < len(view.roster):
            return []
        terms = tuple([(peer, held[peer]) for peer in view.roster if peer in held])
        if len(terms) < len(view.roster):
            return []  # Some are of peers that joined later: their sender has read more of the log.
        self.applying, run = self.bounds.stamp(view.view, step), self.bounds.run
        following = self._following(reach) if reach is not None and view is reach.view else None
        return [ApplyStep(self.applying, terms, step_progress.keeps(run, step), following)]

    def _following(self, reach: StepReach) -> MakeStep | None:
        """The payload that the ranks make by themselves after the next step; None if the step must
        be checked first, or the payload is made already."""
        step = self.version + 1
        made = self.own is not None and self.own.step > step
        if made or step >= reach.last or self.awaited is not None:
            return None
        if step_progress.commits(reach.run, step):
            return None
        return MakeStep(step + 1, reach.batch(step + 1))

    def _complain(
        self, reach: StepReach | None, now: float, leader: PeerId | None
    ) -> list[Command]:
        """Report the peers that are awaited for too long, so that the leader excludes the right
        one."""
        step = self.version + 1
        held = self.payloads.of(reach.view.view, step) if reach is not None else {}
        waits = self.me in held and self.applying is None
        if leader is None or reach is None or not waits or not self.missing():
            self.stall.over()
            return []
        stamp = self.bounds.stamp(reach.view.view, step)
        slow = self.stall.is_slow(stamp, now)
        return [Send(leader, Waiting(stamp, self.missing()))] if slow else []

    # Helpers --------------------------------------------------------------------------------

    @property
    def _floor(self) -> int:
        return self.bounds.floor(self.base if self.awaited is None else self.awaited)

    def _void(self) -> None:
        """Our steps since the last commit are void: go back to the base, and on from there with the
        payloads that count."""
        self.version, self.applying, self.own, self._steady = NONE, None, None, None
        self._loading, self.making = False, None
        agreed = self.run_state.step_progress.step
        self.digests = {step: made for step, made in self.digests.items() if step <= agreed}
        if self._reached[1] > max(agreed, self.base):
            self._reached = (0, self.base)
