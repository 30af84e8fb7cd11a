"""The leader's decisions about a stepwise run: commits of steps, and how a view stops, ends and is
followed by the next one (protocol.md section 5).

They follow from the state after the whole log and the reports of this term. Must NOT send anything,
and must not remember a decision anywhere but in the log.
"""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from protocols.messages import log_entries as e
from protocols.messages.peer import Stepped, StepsHalted, WaitsForPeers
from protocols.messages.step_progress import commits
from protocols.state.run_state import RunState
from protocols.state.step_entries import furthest_step, step_view
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Provider, Stamp
from protocols.types.limits import HELD_STEPS_MAX
from protocols.wire.codec import one_line


@dataclass(slots=True)
class LineageStepReports:
    """The reports about steps of one lineage. A Restore opens another lineage, and all of this is
    dropped."""

    lineage: int
    """The lineage, as in stamps."""
    states: dict[tuple[int, int], dict[PeerId, str]] = field(
        default_factory=dict[tuple[int, int], dict[PeerId, str]]
    )
    """State digests by (view, step)."""
    stopped: dict[PeerId, StepsHalted] = field(default_factory=dict[PeerId, StepsHalted])
    waiting: dict[PeerId, tuple[Stamp, frozenset[PeerId]]] = field(
        default_factory=dict[PeerId, tuple[Stamp, frozenset[PeerId]]]
    )


@dataclass(slots=True)
class StepViews:
    """The reports of peers about their steps, and the rules of the decisions."""

    me: PeerId
    run_state: RunState
    """The state after the whole log, as in decisions.py."""
    _said: LineageStepReports = field(default_factory=lambda: LineageStepReports(0))
    """The reports of the lineage at the last access."""
    _phase: tuple[int, bool] = (0, False)
    """(log index at which the view stopped, whether the log has its Close)."""
    _since: float = NEVER
    """When this phase began here."""

    # Reports --------------------------------------------------------------------------------

    @property
    def said(self) -> LineageStepReports:
        """The reports of the present lineage; empty if a Restore has just opened it."""
        if self._said.lineage != self.run_state.lineage:
            self._said = LineageStepReports(self.run_state.lineage)
        return self._said

    def stepped(self, peer: PeerId, message: Stepped) -> str:
        """Remember a state. Returns how it differs from the majority's; "" if it does not."""
        stamp, step_progress = message.stamp, self.run_state.step_progress
        if stamp.round < step_progress.step or not self._may_be(stamp):
            return ""  # The state is committed already, or a Restore took it back.
        known = self.said.states
        states = known.setdefault((stamp.view, stamp.round), {})
        states[peer] = message.state_digest
        for key in [key for key in known if key[1] < step_progress.step]:
            del known[key]
        right = self._majority(states)
        return "" if right in ("", message.state_digest) else f"differs at step {stamp.round}"

    def stands(self, peer: PeerId, message: StepsHalted) -> None:
        if self._may_be(message.stamp):
            self.said.stopped[peer] = message

    def waits(self, peer: PeerId, message: WaitsForPeers) -> None:
        if self._may_be(message.stamp):
            self.said.waiting[peer] = (message.stamp, frozenset(message.peers))

    def _may_be(self, stamp: Stamp) -> bool:
        """Can a peer be at this stamp, by our log, which has all that its sender has read?"""
        views, furthest = self.run_state.views, furthest_step(self.run_state)
        newest = views[-1].view if views else 0
        known = stamp.lineage == self.run_state.lineage
        return known and stamp.view <= newest and stamp.round <= furthest

    def forget(self, peer: PeerId) -> None:
        """The peer is gone, or back in a new incarnation, which holds nothing that the earlier one
        reported."""
        said = self.said
        said.stopped.pop(peer, None)
        said.waiting.pop(peer, None)
        for states in said.states.values():
            states.pop(peer, None)

    # Decisions ------------------------------------------------------------------------------

    def next_commit(self) -> e.StepCommit | None:
        """A commit of the furthest step at which the whole newest roster has the same state."""
        said, step_progress = self.said, self.run_state.step_progress
        if not said.states:
            return None  # A run of rounds.
        run, views = self.run_state.run, self.run_state.views
        roster = self._counted()
        if run is None or not views or not roster:
            return None
        for (view, step), states in sorted(said.states.items(), key=_by_step, reverse=True):
            owner = step_view(self.run_state, step)
            if step <= step_progress.step or not commits(run, step):
                continue
            if owner is None or owner.view != view or not roster <= states.keys():
                continue  # The view ended before; or a peer is not there yet.
            digests = {states[peer] for peer in roster}
            if len(digests) == 1:
                return e.StepCommit(views[-1].view, step, digests.pop())
        return None

    def next_change(
        self, now: float, able: Set[PeerId], *, timeout_s: float
    ) -> e.View | e.Halt | e.Close | None:
        """The next entry towards the roster that the run should have. `able`: peers with ranks that
        can make a step; `timeout_s`: a peer that reports nothing for so long is excluded."""
        run, views = self.run_state.run, self.run_state.views
        step_progress = self.run_state.step_progress
        if run is None or not self.run_state.stepwise or step_progress.step >= run.outer_steps:
            return None
        phase = (step_progress.halted, step_progress.close is not None)
        if phase != self._phase:
            self._phase, self._since = phase, now
        late = now >= self._since + timeout_s
        members = self.run_state.members
        able = able & members.keys()
        if self.run_state.orders.paused is not None and (not views or step_progress.close):
            return None
        if not views:
            begun = self.run_state.restored is not None or len(able) >= run.peers_min
            return self._view(able, step_progress.step) if begun else None
        if not step_progress.halted:
            return self._halt(views[-1], able)
        if step_progress.close is None:
            return self._close(views[-1], late=late)
        return self._reopen(views[-1], step_progress.close, able, late=late)

    def deadline(self, timeout_s: float) -> float:
        """When `next_change` excludes silent peers."""
        return self._since + timeout_s if self._phase[0] else NEVER

    # While steps are made -------------------------------------------------------------------

    def _halt(self, view: e.View, able: Set[PeerId]) -> e.Halt | None:
        """A Halt, if there is a reason to stop the view."""
        wrong = self._differing()
        if wrong:
            return self._stop(view, wrong, "state differs")
        slow = self._blamed(view)
        if slow:
            return self._stop(view, slow, "others waited too long")
        idle = set(view.roster) - able
        if idle:
            return e.Halt(view.view, (), one_line(f"{self._names(idle)} cannot take part"))
        # A joiner waits for the next commit: a roster that changes all the time makes no steps.
        step_progress = self.run_state.step_progress
        fresh = able - set(view.roster) if step_progress.view == view.view else set[PeerId]()
        if not fresh:
            return None
        return e.Halt(view.view, (), one_line(f"{self._names(fresh)} can take part"))

    def _stop(self, view: e.View, without: Set[PeerId], why: str) -> e.Halt:
        for peer in without:
            self.forget(peer)
        why = f"without {self._names(without)}: {why}"
        return e.Halt(view.view, tuple(sorted(without)), one_line(why))

    def _differing(self) -> set[PeerId]:
        """Peers with a state that differs at some step; the whole roster if no state has a
        majority: each makes its state again from the last agreed one."""
        reports, roster = self.said, self._counted()
        step_progress = self.run_state.step_progress
        for (view, step), states in sorted(reports.states.items(), key=_by_step):
            said = {peer: digest for peer, digest in states.items() if peer in roster}
            owner = step_view(self.run_state, step)
            standing = view == self.run_state.views[-1].view or owner is None or owner.view == view
            if step <= step_progress.step or not standing or not roster <= said.keys():
                continue
            right = self._majority(said)
            wrong = {peer for peer, digest in said.items() if digest != right}
            if wrong:
                return wrong
        return set()

    def _blamed(self, view: e.View) -> set[PeerId]:
        """The peers for which most others wait, at the earliest incomplete step."""
        roster, waits = self._counted(), self.said.waiting
        waiting = {
            peer: (stamp.round, absent & roster)
            for peer, (stamp, absent) in waits.items()
            if stamp.view == view.view and peer in roster and absent & roster
        }
        waits.clear()  # Peers that still wait report it again in another view.
        if not waiting:
            return set()
        first = min(step for step, _ in waiting.values())
        named = Counter(p for step, absent in waiting.values() if step == first for p in absent)
        if set(named) == {self.me}:
            # A leader hears a majority, so it is not the peer at fault.
            return {max(peer for peer, (step, _) in waiting.items() if step == first)}
        return {max(named.keys() - {self.me}, key=lambda peer: (named[peer], peer))}

    # While no steps are made ----------------------------------------------------------------

    def _close(self, view: e.View, *, late: bool) -> e.Close | e.Halt | None:
        """The end of the view: the furthest step that connected peers can complete.

        While a peer of the roster is connected it is a step of this view, else it may be an earlier
        one.
        """
        needed, stopped = self._counted(), self.said.stopped
        members, step_progress = self.run_state.members, self.run_state.step_progress
        reports = {
            peer: report
            for peer, report in stopped.items()
            if report.halted == step_progress.halted and peer in members
        }
        silent = needed - reports.keys()
        if silent and not late:
            return None
        if silent:
            return self._stop(view, silent, "no report of its last step")
        if not needed and not late and members.keys() - reports.keys():
            return None  # No peer of the roster is connected: all other members have to report.
        last = self._last_step(view, reports)
        return e.Close(view.view, last, self._providers(view, reports, last))

    def _last_step(self, view: e.View, reports: Mapping[PeerId, StepsHalted]) -> int:
        step_progress, run = self.run_state.step_progress, self.run_state.run
        assert run is not None
        begun = view.first_round[0] - 1 if self._counted() else 0
        completed = max((report.stamp.round for report in reports.values()), default=0)
        last = max(completed, step_progress.step, begun)
        held = _held(reports)
        while view.first_round[0] - 1 <= last < run.outer_steps:
            if any((last + 1, peer) not in held for peer in view.roster):
                break
            last += 1
        return last

    def _providers(
        self, view: e.View, reports: Mapping[PeerId, StepsHalted], last: int
    ) -> tuple[Provider, ...]:
        """The providers of missing payloads. A peer that is further back catches up by itself."""
        held, providers = _held(reports), set[Provider]()
        for peer, report in reports.items():
            first = max(report.stamp.round + 1, view.first_round[0])
            for step in range(first, last + 1) if last - first < HELD_STEPS_MAX else ():
                for whose in view.roster:
                    holders = held.get((step, whose), set())
                    if peer in holders:
                        continue
                    # A peer that completed a step holds all of its payloads.
                    holders = holders | {p for p, r in reports.items() if r.stamp.round >= step}
                    if holders:
                        providers.add(Provider(step, whose, min(holders)))
        return tuple(sorted(providers, key=lambda x: (x.step, x.peer)))

    def _reopen(
        self, view: e.View, close: e.Close, able: Set[PeerId], *, late: bool
    ) -> e.View | e.Halt | None:
        """The next View, with the peers that completed the last one and can go on."""
        reported = self.said.states
        states = reported.get((view.view, close.last_step), {})
        there = {peer: digest for peer, digest in states.items() if peer in able}
        if not there or (able - there.keys() and not late):
            return None
        # Followers count too: a roster of one peer may be wrong.
        said = {peer: digest for peer, digest in states.items() if peer in self.run_state.members}
        right = self._majority(said)
        wrong = {peer for peer, digest in there.items() if digest != right}
        if wrong:
            return self._stop(view, wrong, "state differs")
        return self._view(there.keys(), close.last_step)

    def _view(self, roster: Set[PeerId], last_step: int) -> e.View | None:
        newest = self.run_state.views[-1].view if self.run_state.views else 0
        if not roster:
            return None
        return e.View(newest + 1, tuple(sorted(roster)), (), (last_step + 1,))

    # Helpers --------------------------------------------------------------------------------

    def _counted(self) -> set[PeerId]:
        """Peers of the newest roster that are still members."""
        views = self.run_state.views
        if not views:
            return set()
        return {peer for peer in views[-1].roster if self.run_state.counts(peer, views[-1].view)}

    def _majority(self, states: Mapping[PeerId, str]) -> str:
        """The digest of more than half of the reports; "" if there is none."""
        digest, count = Counter(states.values()).most_common(1)[0]
        return digest if 2 * count > len(states) else ""

    def _names(self, peers: Set[PeerId]) -> str:
        infos = self.run_state.receivers
        return ", ".join(infos[p].name if p in infos else p for p in sorted(peers))


def _by_step(item: tuple[tuple[int, int], object]) -> tuple[int, int]:
    (view, step), _ = item
    return step, view


def _held(reports: Mapping[PeerId, StepsHalted]) -> dict[tuple[int, PeerId], set[PeerId]]:
    """By (step, peer), the holders of its payload."""
    held: dict[tuple[int, PeerId], set[PeerId]] = {}
    for peer, report in reports.items():
        for payloads in report.held:
            for whose in payloads.peers:
                held.setdefault((payloads.step, whose), set()).add(peer)
    return held
