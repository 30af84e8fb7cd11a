"""The reports of a peer of a stepwise run to the leader: its position, and the peers it waits for.

Must NOT decide which steps are made, nor how a view ends (leader/step_views.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from protocols.interface.commands import Command, Send
from protocols.links.handshake import Identity
from protocols.messages.log_entries import View
from protocols.messages.peer import Control, Have, Stepped, StepsHalted, WaitsForPeers
from protocols.rounds.retries import StallReport
from protocols.state.run_state import RunState
from protocols.steps.bounds import StepBounds
from protocols.steps.kept_copy import KeptCopy
from protocols.steps.payloads import Payloads
from protocols.steps.rank_state import RankState
from protocols.types.ids import PeerId
from protocols.types.limits import HELD_STEPS_MAX


class StepPosition(Protocol):
    """How far this peer is: a StepMachine."""

    @property
    def copy(self) -> KeptCopy: ...
    @property
    def payloads(self) -> Payloads: ...
    @property
    def ranks(self) -> RankState: ...
    def missing(self) -> tuple[PeerId, ...]:
        """The peers that the next step waits for."""
        ...


class StepReports:
    """Remembers the last report of each kind."""

    def __init__(self, me: Identity, run_state: RunState, bounds: StepBounds) -> None:
        self.me = me
        self.run_state = run_state
        self.bounds = bounds
        self.stall = StallReport()
        self._said: dict[object, Control] = {}
        """The last report by kind."""

    def clear(self) -> None:
        """The leader is another one, or may have missed reports: it gets all of them again."""
        self._said.clear()

    def news(self, leader: PeerId | None, steps: StepPosition) -> list[Command]:
        """New reports for `leader`; none if it is None, i.e. no leader is connected."""
        if leader is None or not self.bounds.is_member:
            self._said.clear()  # These were of an earlier membership, or to another leader.
            return []
        reports = self._all(steps)
        new = [report for kind, report in reports.items() if self._said.get(kind) != report]
        self._said = reports
        return [Send(leader, report) for report in new]

    def waiting(
        self, steps: StepPosition, view: View | None, now: float, leader: PeerId | None
    ) -> list[Command]:
        """Report the peers that are awaited for too long, so that the leader excludes the right
        one. `view`: that of the next step."""
        step, missing = steps.ranks.version + 1, steps.missing
        held = steps.payloads.of_step(view.view, step) if view is not None else {}
        waits = self.me.peer in held and steps.ranks.applying is None
        if leader is None or view is None or not waits or not missing():
            self.stall.over()
            return []
        stamp = self.bounds.stamp(view.view, step)
        slow = self.stall.is_slow(stamp, now)
        return [Send(leader, WaitsForPeers(stamp, missing()))] if slow else []

    def _all(self, steps: StepPosition) -> dict[object, Control]:
        run_state, reports, copy = self.run_state, dict[object, Control](), steps.copy
        agreed = run_state.step_progress
        if copy.step >= 0:
            step = max(steps.ranks.version, copy.step)
            known = copy.sure and self.bounds.reaches(step, steps.payloads)
            digest = copy.digest if known else ""
            reports["have"] = Have(run_state.lineage, 0, copy.step, digest)
        for step, (view, digest) in copy.digests.items():
            if step > agreed.step:
                reports[step] = Stepped(self.bounds.stamp(view, step), digest)
        if agreed.halted and copy.step >= 0 and steps.ranks.applying is None:
            view = run_state.views[-1].view
            if agreed.close is None:
                reports["stopped"] = self._stopped(steps, view)
            elif steps.ranks.version == agreed.close.last_step:
                stamp = self.bounds.stamp(view, steps.ranks.version)
                reports["completed"] = Stepped(stamp, steps.ranks.digest)
        return reports

    def _stopped(self, steps: StepPosition, view: int) -> Control:
        """The report of a stopped peer. Later payloads are kept for the Close, but not reported
        again."""
        held = steps.payloads.listed(view, steps.copy.completed + 1, HELD_STEPS_MAX)
        stamp = self.bounds.stamp(view, steps.copy.completed)
        progress = self.run_state.step_progress
        said, report = self._said.get("stopped"), StepsHalted(stamp, progress.halted, held)
        same = isinstance(said, StepsHalted) and replace(said, held=held) == report
        return said if same and said is not None else report
