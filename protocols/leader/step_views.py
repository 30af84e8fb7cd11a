"""The leader's decisions about a stepwise run: what is committed, when everybody stops, how a view
ends and the next one begins (protocol.md section 5).

It looks at what the whole log says and at what peers reported in this term. Must NOT send
anything, and must not remember a decision anywhere but in the log.
"""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from protocols.messages import log_entries as e
from protocols.messages.peer import Stepped, Stopped, Waiting
from protocols.messages.step_progress import commits
from protocols.state.run_state import Membership
from protocols.state.step_entries import furthest_step, step_view
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Provider, Stamp
from protocols.types.limits import HELD_STEPS_MAX
from protocols.wire.codec import one_line


@dataclass(slots=True)
class StepReports:
    """What peers said of the steps of one lineage. A Restore opens another lineage, and nothing of
    this is looked at any more."""

    lineage: int
    """As stamps have it."""
    states: dict[tuple[int, int], dict[PeerId, str]] = field(
        default_factory=dict[tuple[int, int], dict[PeerId, str]]
    )
    """State digests by (view, step)."""
    stopped: dict[PeerId, Stopped] = field(default_factory=dict[PeerId, Stopped])
    waiting: dict[PeerId, tuple[Stamp, frozenset[PeerId]]] = field(
        default_factory=dict[PeerId, tuple[Stamp, frozenset[PeerId]]]
    )


@dataclass(slots=True)
class Closing:
    """What peers said of their steps, and the rules."""

    me: PeerId
    members: Membership
    """What the whole log says, as for decisions.py."""
    _said: StepReports = field(default_factory=lambda: StepReports(0))
    """Of the lineage that the log was in when anybody looked last."""
    _phase: tuple[int, bool] = (0, False)
    """Since when everybody stands still, and whether the log says how the view ends."""
    _since: float = NEVER
    """When we first saw this phase."""

    # Reports --------------------------------------------------------------------------------

    @property
    def said(self) -> StepReports:
        """Of the present lineage, nothing where a Restore has just opened it."""
        if self._said.lineage != self.members.lineage:
            self._said = StepReports(self.members.lineage)
        return self._said

    def stepped(self, peer: PeerId, message: Stepped) -> str:
        """Remember a state; return how the peer differs from the majority, if it does."""
        stamp, course = message.stamp, self.members.course
        if stamp.round < course.step or not self._may_be(stamp):
            return ""  # Of a state that is agreed already, or that a Restore took back.
        known = self.said.states
        states = known.setdefault((stamp.view, stamp.round), {})
        states[peer] = message.state_digest
        for key in [key for key in known if key[1] < course.step]:
            del known[key]
        right = self._majority(states)
        return "" if right in ("", message.state_digest) else f"differs at step {stamp.round}"

    def stands(self, peer: PeerId, message: Stopped) -> None:
        if self._may_be(message.stamp):
            self.said.stopped[peer] = message

    def waits(self, peer: PeerId, message: Waiting) -> None:
        if self._may_be(message.stamp):
            self.said.waiting[peer] = (message.stamp, frozenset(message.peers))

    def _may_be(self, stamp: Stamp) -> bool:
        """Can anybody be there, by a log that has whatever its sender has read?"""
        views, furthest = self.members.views, furthest_step(self.members)
        newest = views[-1].view if views else 0
        known = stamp.lineage == self.members.lineage
        return known and stamp.view <= newest and stamp.round <= furthest

    def forget(self, peer: PeerId) -> None:
        """It is gone, or back in a new life that holds nothing of what the old one said."""
        self.said.stopped.pop(peer, None)
        self.said.waiting.pop(peer, None)
        for states in self.said.states.values():
            states.pop(peer, None)

    # Decisions ------------------------------------------------------------------------------

    def next_commit(self) -> e.StepCommit | None:
        """The furthest step at which all of the newest roster arrived at one state."""
        if not self.said.states:
            return None  # As in every run of rounds.
        run, views = self.members.run, self.members.views
        roster = self._counted()
        if run is None or not views or not roster:
            return None
        for (view, step), states in sorted(self.said.states.items(), key=_by_step, reverse=True):
            owner = step_view(self.members, step)
            if step <= self.members.course.step or not commits(run, step):
                continue
            if owner is None or owner.view != view or not roster <= states.keys():
                continue  # Of a view that ended before; or somebody is not there yet.
            digests = {states[peer] for peer in roster}
            if len(digests) == 1:
                return e.StepCommit(views[-1].view, step, digests.pop())
        return None

    def next_change(
        self, now: float, able: Set[PeerId], *, timeout_s: float
    ) -> e.View | e.Halt | e.Close | None:
        """What brings the run to the roster that it should have. `able`: whose ranks could make
        a step; `timeout_s`: who says nothing for so long is left out."""
        run, views, course = self.members.run, self.members.views, self.members.course
        if run is None or not self.members.stepwise or course.step >= run.outer_steps:
            return None
        phase = (course.halted, course.close is not None)
        if phase != self._phase:
            self._phase, self._since = phase, now
        late = now >= self._since + timeout_s
        able = able & self.members.members.keys()
        if not views:
            begun = self.members.restored is not None or len(able) >= run.peers_min
            return self._view(able, course.step) if begun else None
        if not course.halted:
            return self._halt(views[-1], able)
        if course.close is None:
            return self._close(views[-1], late=late)
        return self._reopen(views[-1], course.close, able, late=late)

    def deadline(self, timeout_s: float) -> float:
        """When `next_change` gives somebody up."""
        return self._since + timeout_s if self._phase[0] else NEVER

    # While steps are made -------------------------------------------------------------------

    def _halt(self, view: e.View, able: Set[PeerId]) -> e.Halt | None:
        """Why everybody has to stop, if there is a reason."""
        wrong = self._differing()
        if wrong:
            return self._stop(view, wrong, "whose state differs")
        slow = self._blamed(view)
        if slow:
            return self._stop(view, slow, "for whom others wait too long")
        idle = set(view.roster) - able
        if idle:
            return e.Halt(view.view, (), one_line(f"{self._names(idle)} cannot take part"))
        # Who comes waits for the next commit: a roster that changes all the time makes no steps.
        fresh = able - set(view.roster) if self.members.course.view == view.view else set[PeerId]()
        if not fresh:
            return None
        return e.Halt(view.view, (), one_line(f"{self._names(fresh)} can take part"))

    def _stop(self, view: e.View, without: Set[PeerId], why: str) -> e.Halt:
        for peer in without:
            self.forget(peer)
        why = f"without {self._names(without)}, {why}"
        return e.Halt(view.view, tuple(sorted(without)), one_line(why))

    def _differing(self) -> set[PeerId]:
        """Whose state at some step is not that of the others; all of them, if none is that of
        most: each makes its own again from the last agreed one."""
        roster, course = self._counted(), self.members.course
        for (view, step), states in sorted(self.said.states.items(), key=_by_step):
            said = {peer: digest for peer, digest in states.items() if peer in roster}
            owner = step_view(self.members, step)
            standing = view == self.members.views[-1].view or owner is None or owner.view == view
            if step <= course.step or not standing or not roster <= said.keys():
                continue
            right = self._majority(said)
            wrong = {peer for peer, digest in said.items() if digest != right}
            if wrong:
                return wrong
        return set()

    def _blamed(self, view: e.View) -> set[PeerId]:
        """For whom most wait, at the earliest step that does not end: later ones wait for it."""
        roster = self._counted()
        waiting = {
            peer: (stamp.round, absent & roster)
            for peer, (stamp, absent) in self.said.waiting.items()
            if stamp.view == view.view and peer in roster and absent & roster
        }
        self.said.waiting.clear()  # Who waits still says so again, in another view.
        if not waiting:
            return set()
        first = min(step for step, _ in waiting.values())
        named = Counter(p for step, absent in waiting.values() if step == first for p in absent)
        if set(named) == {self.me}:
            # We hear everybody, or would not lead.
            return {max(peer for peer, (step, _) in waiting.items() if step == first)}
        return {max(named.keys() - {self.me}, key=lambda peer: (named[peer], peer))}

    # While everybody stands still -----------------------------------------------------------

    def _close(self, view: e.View, *, late: bool) -> e.Close | e.Halt | None:
        """The furthest step that those who are here can complete.

        While anybody of the roster is, that is one of this view; or else it may be one before.
        """
        needed = self._counted()
        reports = {
            peer: report
            for peer, report in self.said.stopped.items()
            if report.halted == self.members.course.halted and peer in self.members.members
        }
        silent = needed - reports.keys()
        if silent and not late:
            return None
        if silent:
            return self._stop(view, silent, "who does not say where it stands")
        if not needed and not late and self.members.members.keys() - reports.keys():
            return None  # Nobody of the roster is here: whoever followed it knows best.
        last = self._last_step(view, reports)
        return e.Close(view.view, last, self._providers(view, reports, last))

    def _last_step(self, view: e.View, reports: Mapping[PeerId, Stopped]) -> int:
        course, run = self.members.course, self.members.run
        assert run is not None
        begun = view.first_round[0] - 1 if self._counted() else 0
        completed = max((report.stamp.round for report in reports.values()), default=0)
        last = max(completed, course.step, begun)
        held = _held(reports)
        while view.first_round[0] - 1 <= last < run.outer_steps:
            if any((last + 1, peer) not in held for peer in view.roster):
                break
            last += 1
        return last

    def _providers(
        self, view: e.View, reports: Mapping[PeerId, Stopped], last: int
    ) -> tuple[Provider, ...]:
        """Who gives what to those who lack it. Who is further back catches up by itself."""
        held, providers = _held(reports), set[Provider]()
        for peer, report in reports.items():
            first = max(report.stamp.round + 1, view.first_round[0])
            for step in range(first, last + 1) if last - first < HELD_STEPS_MAX else ():
                for whose in view.roster:
                    holders = held.get((step, whose), set())
                    if peer in holders:
                        continue
                    # Who completed a step holds all payloads of it.
                    holders = holders | {p for p, r in reports.items() if r.stamp.round >= step}
                    if holders:
                        providers.add(Provider(step, whose, min(holders)))
        return tuple(sorted(providers, key=lambda x: (x.step, x.peer)))

    def _reopen(
        self, view: e.View, close: e.Close, able: Set[PeerId], *, late: bool
    ) -> e.View | e.Halt | None:
        """The next roster: who completed the view, and can go on."""
        states = self.said.states.get((view.view, close.last_step), {})
        there = {peer: digest for peer, digest in states.items() if peer in able}
        if not there or (able - there.keys() and not late):
            return None
        # Who followed knows as well what is right: the roster alone may be one that is wrong.
        said = {peer: digest for peer, digest in states.items() if peer in self.members.members}
        right = self._majority(said)
        wrong = {peer for peer, digest in there.items() if digest != right}
        if wrong:
            return self._stop(view, wrong, "whose state differs")
        return self._view(there.keys(), close.last_step)

    def _view(self, roster: Set[PeerId], last_step: int) -> e.View | None:
        newest = self.members.views[-1].view if self.members.views else 0
        if not roster:
            return None
        return e.View(newest + 1, tuple(sorted(roster)), (), (last_step + 1,))

    # Helpers --------------------------------------------------------------------------------

    def _counted(self) -> set[PeerId]:
        """Who of the newest roster is in still."""
        views = self.members.views
        if not views:
            return set()
        return {peer for peer in views[-1].roster if self.members.counts(peer, views[-1].view)}

    def _majority(self, states: Mapping[PeerId, str]) -> str:
        """The digest of more than half of those who spoke; "": there is none."""
        digest, count = Counter(states.values()).most_common(1)[0]
        return digest if 2 * count > len(states) else ""

    def _names(self, peers: Set[PeerId]) -> str:
        infos = self.members.receivers
        return ", ".join(infos[p].name if p in infos else p for p in sorted(peers))


def _by_step(item: tuple[tuple[int, int], object]) -> tuple[int, int]:
    (view, step), _ = item
    return step, view


def _held(reports: Mapping[PeerId, Stopped]) -> dict[tuple[int, PeerId], set[PeerId]]:
    """Who holds the payload of a peer for a step."""
    held: dict[tuple[int, PeerId], set[PeerId]] = {}
    for peer, report in reports.items():
        for payloads in report.held:
            for whose in payloads.peers:
                held.setdefault((payloads.step, whose), set()).add(peer)
    return held
