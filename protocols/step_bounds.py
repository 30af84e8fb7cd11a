"""How far a peer may go in a stepwise run, by what it has read of the log.

Must NOT remember anything: what a peer holds and did is steps.py.
"""

from protocols.course import TENTATIVE_COMMITS
from protocols.entries import Run, View
from protocols.events import StepReceived
from protocols.hellos import Identity
from protocols.ids import Stamp
from protocols.membership import Membership
from protocols.payloads import Payloads
from protocols.record import record
from protocols.step_entries import begun, furthest_step, step_view

PARKED_VIEWS = 4
"""Payloads are kept for so many views beyond our log: their sender has read more of it."""


@record
class StepBounds:
    """Of one peer."""

    me: Identity
    members: Membership

    @property
    def is_member(self) -> bool:
        """We are in, and not only an earlier life of ours."""
        info = self.members.members.get(self.me.peer)
        return info is not None and info.incarnation == self.me.incarnation

    @property
    def run(self) -> Run:
        assert self.members.run is not None, "there are no steps before the Run"
        return self.members.run

    @property
    def newest(self) -> int:
        """Number of the newest view; 0: there is none."""
        return self.members.views[-1].view if self.members.views else 0

    @property
    def runs(self) -> bool:
        """The newest view makes steps."""
        return bool(self.members.views) and not self.members.course.halted

    @property
    def own_view(self) -> View | None:
        """The view that we make steps in, while it runs."""
        view = self.members.views[-1] if self.runs and self.is_member else None
        peer = self.me.peer
        counts = view is not None and self.members.counts(peer, view.view)
        return view if view is not None and counts and peer in view.roster else None

    @property
    def begun(self) -> int:
        """The last step before the newest view: the view before ended with it, for all."""
        return begun(self.members)

    def stamp(self, view: int, step: int) -> Stamp:
        return Stamp(self.run.run, self.members.lineage, view, 0, step, 0)

    def frontier(self, completed: int) -> int:
        """The last step that we may complete now. `completed`: the furthest so far."""
        agreed = self.members.course
        if agreed.close is not None:
            return agreed.close.last_step
        if agreed.halted:
            return max(agreed.step, completed, self.begun)  # The others count on our report.
        tentative = TENTATIVE_COMMITS * self.run.commit_every_steps
        return min(self.run.outer_steps, max(self.begun, agreed.step) + tentative)

    def target(self, payloads: Payloads) -> int:
        """The last step that others have certainly completed, or will from what they hold."""
        agreed = self.members.course
        if agreed.close is not None:
            return agreed.close.last_step
        return max(agreed.step, self.begun, self._seen(payloads))

    def _seen(self, payloads: Payloads) -> int:
        """The last step that others completed, going by what they sent: who sends a payload has
        completed the step before. But nobody has who lacks ours; and where nobody needs ours, one
        alone is not believed: a roster is never more than a step apart."""
        if not self.runs:
            return 0
        newest = payloads.newest(self.newest)
        last = sorted(newest.get(peer, 0) for peer in self.members.views[-1].roster)
        if self.own_view is not None:
            return min(last[-1] - 1, newest.get(self.me.peer, 0))
        return min(last[-2:]) - 1

    def is_of_roster(self, event: StepReceived) -> bool:
        """Of one that makes this step, as far as the log says."""
        stamp = event.stamp
        if stamp.view > self.newest:
            # Its sender has read more of the log. Nobody passes on what nobody can ask for yet.
            return stamp.view <= self.newest + PARKED_VIEWS and event.sender == event.peer
        view = step_view(self.members, stamp.round)
        return view is not None and view.view == stamp.view and event.peer in view.roster

    @property
    def limit(self) -> int:
        """Together with the floor it bounds what we keep."""
        return furthest_step(self.members)

    def floor(self, ours: int) -> int:
        """Payloads up to here are of no use: we have what they led to, or will get it. `ours`: the
        step of our copy of the state; negative: we have none."""
        agreed = self.members.course.base
        # Ranks that stay away would make us keep the payloads of the whole run.
        return max(ours, agreed - 2 * self.run.snapshot_every_steps) if ours >= 0 else agreed

    def reaches(self, step: int, payloads: Payloads) -> bool:
        """From the state after this step we can get to what is committed."""
        steps = range(step + 1, self.members.course.step + 1)
        views = ((step_view(self.members, step), step) for step in steps)
        return all(v is not None and not payloads.missing(v, step) for v, step in views)
