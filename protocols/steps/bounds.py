"""How far a peer may go in a stepwise run, by what it has read of the log.

Must NOT remember anything: what a peer holds and did is step_machine.py.
"""

from protocols.interface.events import StepReceived
from protocols.links.handshake import Identity
from protocols.messages.log_entries import Run, View
from protocols.messages.step_progress import TENTATIVE_COMMITS
from protocols.state.run_state import Membership
from protocols.state.step_entries import batch_of, begun, furthest_step, step_view
from protocols.steps.payloads import Payloads
from protocols.types.frozen import record
from protocols.types.ids import Stamp

PARKED_VIEWS = 4
"""Payloads are kept for so many views beyond our log: their sender has read more of it."""


@record
class Reach:
    """What the log allows us in the view that we make steps in: it holds until the log goes on."""

    run: Run
    lineage: int
    view: View
    begun: int
    """The last step before this view: the one before ended with it, for all."""
    last: int
    """The last step that may be completed now."""
    limit: int
    """Payloads of later steps are not kept."""
    first_batch: int
    """That of step 0, if this view had begun with it."""

    def batch(self, step: int) -> int:
        """Number of the batch that we make our payload of this step from."""
        return self.first_batch + step * len(self.view.roster)

    def is_ours(self, event: StepReceived) -> bool:
        """A payload of a step that may be completed now, from the peer that made it."""
        stamp, peer, view = event.stamp, event.peer, self.view
        return (
            stamp.round <= self.limit
            and stamp.view == view.view
            and stamp.lineage == self.lineage
            and stamp.run == self.run.run
            and peer == event.sender
            and peer in view.roster
        )


class StepBounds:
    """Of one peer. What follows from the log alone is worked out once for each of its entries."""

    def __init__(self, me: Identity, members: Membership) -> None:
        self.me = me
        self.members = members
        self._index = -1
        """What is noted below is of the log up to here."""
        self._reach: Reach | None = None
        self._last: int | None = None
        self._begun = self._limit = 0
        self._stamp = Stamp(0, 0, 0, 0, 0, 0)

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
    def reach(self) -> Reach | None:
        """In the view that we make steps in, while it runs; None: we make none."""
        self._read()
        return self._reach

    @property
    def own_view(self) -> View | None:
        """The view that we make steps in, while it runs."""
        reach = self.reach
        return reach.view if reach is not None else None

    @property
    def begun(self) -> int:
        """The last step before the newest view: the view before ended with it, for all."""
        self._read()
        return self._begun

    @property
    def last(self) -> int | None:
        """The last step that may be completed now, while it does not depend on how far we are."""
        self._read()
        return self._last

    @property
    def limit(self) -> int:
        """Together with the floor it bounds what we keep."""
        self._read()
        return self._limit

    def stamp(self, view: int, step: int) -> Stamp:
        stamp, lineage = self._stamp, self.members.lineage
        if stamp.round != step or stamp.view != view or stamp.lineage != lineage:
            stamp = self._stamp = Stamp(self.run.run, lineage, view, 0, step, 0)
        return stamp

    def frontier(self, completed: int) -> int:
        """The last step that we may complete now. `completed`: the furthest so far."""
        if self.last is not None:
            return self.last
        return max(self.members.course.step, completed, self.begun)  # Others count on our report.

    def _read(self) -> None:
        """What the log says by now."""
        members = self.members
        if self._index == members.index:
            return
        self._index = members.index
        self._begun, self._limit = begun(members), furthest_step(members)
        self._last = self.find_last()
        self._reach = self._find_reach() if self.runs and self.is_member else None

    def _find_reach(self) -> Reach | None:
        members, peer, view = self.members, self.me.peer, self.members.views[-1]
        if self._last is None or peer not in view.roster or not members.counts(peer, view.view):
            return None
        first = view.first_round[0]
        batch = batch_of(members, view, first, peer) - first * len(view.roster)
        bounds = (self._begun, self._last, self._limit)
        return Reach(self.run, members.lineage, view, *bounds, batch)

    def find_last(self) -> int | None:
        """`last`, worked out anew."""
        agreed = self.members.course
        if agreed.close is not None:
            return agreed.close.last_step
        if agreed.halted:
            return None
        tentative = TENTATIVE_COMMITS * self.run.commit_every_steps
        return min(self.run.outer_steps, max(self._begun, agreed.step) + tentative)

    def highest(self, payloads: Payloads) -> int:
        """No `target` is beyond this step."""
        agreed = self.members.course
        if agreed.close is not None:
            return agreed.close.last_step
        return max(agreed.step, self.begun, payloads.furthest(self.newest) - 1)

    def lacks(self, step: int, stamp: Stamp, payloads: Payloads) -> bool:
        """A payload of this stamp is of our next step, and others of that step are missing."""
        view = self.own_view
        if view is None or (stamp.view, stamp.round) != (view.view, step):
            return False
        return len(payloads.of(view.view, step)) < len(view.roster)

    def reach_target(self, step: int, payloads: Payloads) -> bool:
        """Others cannot have got beyond this step, or have not."""
        return step >= self.highest(payloads) or step >= self.target(payloads)

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
