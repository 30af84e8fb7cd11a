"""One peer's part in a stepwise run: payloads of a fixed roster in, one state for all out.

A step is applied when all payloads of its roster are held; nothing is voted on. Steps are tentative
until a StepCommit: everybody keeps the last committed copy of the state (the base) and the payloads
since, and can make its state from them again. Level-triggered like rounds/fragment_rounds.py: what
the log and others say is remembered, then `advance` does whatever can be done now. A payload, or an
answer of our ranks, wakes only what makes and applies the next step. Must NOT decide what is
committed or how a view ends (leader/step_views.py), nor touch bytes.
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
from protocols.messages.snapshot import Returned
from protocols.rounds.retries import Stall
from protocols.state.run_state import Membership
from protocols.state.step_entries import step_view
from protocols.steps.bounds import Reach, StepBounds
from protocols.steps.payload_fetch import FETCH_STEPS, Refill
from protocols.steps.payloads import Payloads
from protocols.steps.step_position import StepReports
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Stamp

NONE = -1


class Steps:
    """What this peer holds, what it made of it, and what it said of that."""

    def __init__(self, me: Identity, members: Membership) -> None:
        self.me = me.peer
        self.members = members
        self.bounds = StepBounds(me, members)
        self.version = NONE
        """The step of our ranks' state; NONE: they have none."""
        self.state_digest = ""
        self.base = NONE
        """The step of the copy that we keep."""
        self.base_digest = ""
        self.awaited: int | None = None
        """The step of the state that a transfer brings us."""
        self.applying: Stamp | None = None
        self.own: StepMade | None = None
        """The newest payload of our ranks."""
        self.payloads = Payloads()
        self.digests: dict[int, tuple[int, str]] = {}
        """By step since the base: (view, state digest) at steps that everybody reports."""
        self.damaged = False
        """Our copy is not what its digest says: nobody hears of one, until we get another."""
        self.stall, self.refill = Stall(), Refill(self.bounds)
        self.able = False
        """Our ranks could make steps with the others when we looked last: they are there, or will
        be in no time."""
        self.woken = True
        """More is another than what makes and applies the next step: the log, say, or who leads."""
        self.awake = False
        """A payload came from which something may follow."""
        self._steady: Reach | None = None
        """How far we may go, if all went as it should when we looked last."""
        self._unsent = True
        """Somebody may lack our newest payloads."""
        self._recheck = False
        """The log went on while a step was being applied."""
        self._at = 0
        """The view in which our version was made; 0: it is the base."""
        self._reached = (0, NONE)
        """(view, step): the furthest that we completed, even if the ranks must get there again."""
        self._loading = False
        self.making: MakeStep | None = None
        """What our ranks are at."""
        self._strays = 0
        """How often we made another state than the committed one from our copy. Once, and it may
        have been our memory; then nobody is given the copy until it was seen to lead there."""
        self._returned: Returned | None = None
        """When the log said that we count no more, last."""
        self.sent: dict[tuple[int, int], set[PeerId]] = {}
        """The receivers of our own payloads by (view, step), each on its present connection."""
        self._receivers: tuple[PeerId, ...] = ()
        """The connected peers that get our payloads, in order."""
        self._pruned = (0, NONE)
        """(log index, floor) when we forgot payloads last."""
        self._reports = StepReports(me, members, self.bounds)

    # Inputs ---------------------------------------------------------------------------------

    def received(self, event: StepReceived) -> bool:
        """True if the bytes are worth keeping (I3)."""
        stamp, whose = event.stamp, event.peer
        steady, ahead = self._steady, stamp.round - self.version
        # Of two steps ahead: its sender has made the step that we are making.
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
        if self.version < self.members.course.step:
            self.woken = True  # We may get to what is committed, and shall say so.
        waits = self.version >= 0 and self.bounds.lacks(self.version + 1, stamp, self.payloads)
        self.awake = self.woken or not waits
        return kept

    def _is_expected(self, event: StepReceived) -> bool:
        """By a full look: of a step and a roster that the log admits, and not unasked."""
        expected = self.expects(event.stamp, event.sender, event.peer)
        return expected and self.bounds.is_of_roster(event)

    def made(self, event: StepMade) -> None:
        """Our ranks' payload is bytes now, the same ones for every view."""
        making = self.making
        if making is not None and making.step == event.step and making.batch == event.batch:
            self.making, self.own = None, event

    def applied(self, event: StepApplied) -> None:
        """Our ranks have the state after the step."""
        if event.stamp != self.applying:
            return  # They had to go back meanwhile.
        step, view = event.stamp.round, event.stamp.view
        self.applying = None
        told = self._recheck or self.members.course.halted > 0
        self._recheck = False
        self.version, self.state_digest, self._at = step, event.state_digest, view
        self.sent.pop((view, step - 1), None)  # If the ranks go back, it is sent once more.
        if step > self._reached[1] or self._reached[0] != view:
            self._reached = (view, step)
        if step_progress.commits(self.bounds.run, step):
            self.digests[step] = (view, event.state_digest)
            told = True
        self.woken = self.woken or told

    def loaded(self, event: BaseLoaded) -> bool:
        """Our ranks have the base; False if that is not what it was."""
        if not self._loading or event.step != self.base:
            return True  # Of ranks that are gone.
        self._loading, self._steady = False, None
        if event.state_digest != self.base_digest:
            self.base = NONE
            return False
        self.version, self.state_digest, self._at = self.base, self.base_digest, 0
        return True

    def state_received(self, step: int, digest: str) -> list[Command]:
        """A copy of the run's state is here: ours, or what a donor sent."""
        self._void()
        self.refill.over()
        same = (step, digest) == (self.base, self.base_digest)
        self._strays = min(self._strays, 1) if same else 0
        self.base, self.base_digest, self.awaited, self.damaged = step, digest, None, False
        self._reached, self.digests = (0, step), {}
        return [ReleaseSteps(step)]

    def trainers_lost(self) -> None:
        """The state is gone with them. What they sent is not: they get it back step by step."""
        self.version, self.applying, self._steady = NONE, None, None
        self._loading, self.making = False, None

    def restored(self) -> None:
        """The run went back to a cut: nothing of what we hold belongs to it."""
        self._void()
        self.base, self.base_digest, self.awaited, self.damaged = NONE, "", None, False
        self._reached, self._returned, self._strays = (0, NONE), None, 0
        self.payloads, self.digests, self.refill = Payloads(), {}, Refill(self.bounds)
        self._reports.clear()

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: what it may lack is sent again."""
        for peers in self.sent.values():
            peers.discard(peer)

    def forget_reports(self) -> None:
        """There is a new leader, or a new term: it hears everything once more."""
        self._reports.clear()
        self.stall.over()

    def fetched(self, peer: PeerId, message: FetchSteps) -> list[Command]:
        """Somebody lacks payloads; we give what we hold of them."""
        return self.refill.give(peer, message, self.payloads)

    # Questions ------------------------------------------------------------------------------

    def expects(self, stamp: Stamp, sender: PeerId, whose: PeerId) -> bool:
        """A payload of this step may come now: nobody makes us hold others (I3). Nor is another's
        taken from anybody whom we did not ask for it: the first one stays, and it may be a lie."""
        if (stamp.run, stamp.lineage) != (self.bounds.run.run, self.members.lineage):
            return False
        if sender != whose and not self.refill.has_asked(sender, stamp.round, whose):
            return False
        return self._floor < stamp.round <= self.bounds.limit

    @property
    def finished(self) -> bool:
        """The last step is committed, and we have the state after it."""
        return self.base >= self.bounds.run.outer_steps

    @property
    def strayed(self) -> bool:
        """What is committed cannot be reached from our copy."""
        return self._strays > 1

    @property
    def behind(self) -> bool:
        """What we lack cannot be had any more, or we lost our way: only a transfer helps."""
        if self.awaited is not None:
            return False
        return self.strayed or self.refill.is_hopeless(max(self.version, self.base))

    @property
    def completed(self) -> int:
        """The furthest step that we completed and nobody took back."""
        view, step = self._reached
        owner = step_view(self.members, step)
        stands = step <= self.base or (owner is not None and owner.view == view)
        return max(step, self.base) if stands else self.base

    @property
    def sure(self) -> bool:
        """Our copy is the run's state after its step, as far as we can tell."""
        return not (self._strays or self.damaged)

    @property
    def frontier(self) -> int:
        """The last step that we may complete now."""
        last = self.bounds.last
        return last if last is not None else self.bounds.frontier(self.completed)

    @property
    def deadline(self) -> float:
        """When something happens here without any event."""
        return min(self.refill.at, self.stall.at)

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the next step waits for, as seen from here."""
        view = step_view(self.members, self.version + 1)
        lacking = self.payloads.missing(view, self.version + 1) if view is not None else ()
        return tuple(peer for peer in lacking if peer != self.me)

    # What can be done now -------------------------------------------------------------------

    def go_on(self, now: float) -> list[Command] | None:
        """The next step of a steady run, which is most of what a small step costs. None: it is not
        steady, and needs a full look. The same as `advance` would do, without what it would only
        look at: sims/simulator/twin_cores.py compares the two."""
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
            self.stall.is_slow(self.bounds.stamp(view.view, step), now)  # It begins to wait.
        return commands

    def advance(
        self,
        now: float,
        connected: Set[PeerId],
        leader: PeerId | None,
        *,
        ready: bool,
    ) -> list[Command]:
        """Everything that is possible and not done yet. `ready`: our ranks can be given a state."""
        woken, self.woken, self.awake = self.woken, False, False
        commands = self._follow() if woken else []
        if ready and self.version < 0 <= self.base and not (self._loading or self.strayed):
            self._loading = True
            commands.append(LoadBase(self.base))
        reach = self.bounds.reach
        if reach is not None:
            commands += self._make(reach)
            if woken:
                self._receivers = tuple(sorted(connected & self.members.receivers.keys()))
                commands += self._send(reach.view, self.version)
            if woken or self._unsent:
                commands += self._send(reach.view, self.version + 1)
        if self.applying is None and 0 <= self.version < self.frontier:
            commands += self._apply(step_view(self.members, self.version + 1), reach)
        first = max(self.version, self.base) + 1 if self.awaited is None else self.awaited + 1
        highest = self.bounds.highest(self.payloads)
        if 0 < first <= highest:
            commands += self.refill.ask(first, self.payloads, now, connected)
        else:
            self.refill.over()  # As nearly always.
        near = self.version + FETCH_STEPS
        reaches = near >= highest or self.bounds.reach_target(near, self.payloads)
        self.able = self.version >= 0 and reaches
        steady = self.able and self.awaited is None and self.refill.at == NEVER
        self._steady = reach if steady and self._is_up_to_date(reach) else None
        if woken:
            self._recheck = self.applying is not None
            commands += self._reports.news(leader, self)
        return commands + self._complain(reach, now, leader)

    def _is_up_to_date(self, reach: Reach | None) -> bool:
        """Our ranks have all that is committed."""
        agreed = self.members.course.step
        return reach is not None and self.version >= max(agreed, self.base, reach.begun) >= 0

    def _follow(self) -> list[Command]:
        """Give up what the log says is void; take what it says is agreed as the new base."""
        members, agreed, commands = self.members, self.members.course, list[Command]()
        returned = members.returned.get(self.me)
        if returned != self._returned:
            self._returned = returned
            self._void()  # Whoever said so had a reason: our state may be wrong.
        view = step_view(members, self.version) if self.version > self.base else None
        if (view is not None and view.view != self._at) or self._beyond_end:
            self._void()  # The others ended that view before this step.
        for step, digest in ((agreed.base, agreed.base_digest), (agreed.step, agreed.digest)):
            made_in, ours = self.digests.get(step, (0, ""))
            if ours == digest and step > self.base:
                self._strays = 0
            elif ours not in ("", digest):
                owner = step_view(members, step)
                if owner is not None and owner.view == made_in:
                    text = f"our state at step {step} is not the one that is committed"
                    commands.append(Note("diverged", text))
                    self._strays += 1
                self._void()
                self.digests.pop(step, None)
        stay = self.awaited is not None  # Another base is coming: keep what follows it.
        if agreed.base > self.base >= 0 and agreed.base in self.digests and not stay:
            self.base, (_, self.base_digest) = agreed.base, self.digests[agreed.base]
            self._strays = 0
            commands.append(ReleaseSteps(self.base))
        self._prune()
        return commands

    @property
    def _beyond_end(self) -> bool:
        close = self.members.course.close
        return close is not None and self.version > max(close.last_step, self.base)

    def _prune(self) -> None:
        newest, floor = self.bounds.newest, self._floor
        for key in [x for x in self.sent if x[0] != newest or x[1] < self.version]:
            del self.sent[key]
        if self._pruned == (self.members.index, floor):
            return  # What fits depends on nothing else, and what comes is looked at then.
        self._pruned = (self.members.index, floor)

        def fits(view: int, step: int) -> bool:
            owner = step_view(self.members, step)
            return step > floor and (view > newest or (owner is not None and owner.view == view))

        self.payloads.prune(fits)
        self.refill.prune(floor)
        for step in [step for step in self.digests if step < self.base]:
            del self.digests[step]

    def _make(self, reach: Reach) -> list[Command]:
        """Our ranks make their payload as soon as they have the state for it."""
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
        """Our payload of a step goes to all other peers, for none can go on without it.

        That of the step before, too, over a new connection: a roster is never more than a step
        apart.
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

    def _apply(self, view: View | None, reach: Reach | None) -> list[Command]:
        """Our ranks add up the next step, of this view, as soon as all of its payloads are here."""
        step = self.version + 1
        held = self.payloads.of(view.view, step) if view is not None else {}
        if view is None or len(held) < len(view.roster):
            return []
        terms = tuple([(peer, held[peer]) for peer in view.roster if peer in held])
        if len(terms) < len(view.roster):
            return []  # Some are of peers that came when the sender had read more of the log.
        self.applying, run = self.bounds.stamp(view.view, step), self.bounds.run
        following = self._following(reach) if reach is not None and view is reach.view else None
        return [ApplyStep(self.applying, terms, step_progress.keeps(run, step), following)]

    def _following(self, reach: Reach) -> MakeStep | None:
        """What our ranks make by themselves when they have applied the next step; None: nothing
        before we have looked at what came of that one, or it is made already."""
        step = self.version + 1
        made = self.own is not None and self.own.step > step
        if made or step >= reach.last or self.awaited is not None:
            return None
        if step_progress.commits(reach.run, step):
            return None
        return MakeStep(step + 1, reach.batch(step + 1))

    def _complain(self, reach: Reach | None, now: float, leader: PeerId | None) -> list[Command]:
        """Say for which peers we wait too long: the leader goes on without the right one."""
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
        """What we made since the last commit is not the run's: back to the base, and on from
        there with the payloads that are."""
        self.version, self.applying, self.own, self._steady = NONE, None, None, None
        self._loading, self.making = False, None
        agreed = self.members.course.step
        self.digests = {step: made for step, made in self.digests.items() if step <= agreed}
        if self._reached[1] > max(agreed, self.base):
            self._reached = (0, self.base)
