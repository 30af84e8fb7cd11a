"""The steps that a peer of a stepwise run may make and keep payloads of, by the log that it has
read.

Must NOT remember what a peer holds or did (step_machine.py).
"""

from protocols.interface.events import StepReceived
from protocols.links.handshake import Identity
from protocols.messages.log_entries import Run, View
from protocols.messages.step_progress import TENTATIVE_COMMITS
from protocols.state.run_state import RunState
from protocols.state.step_entries import batch_of, begun, furthest_step, step_view
from protocols.steps.payloads import Payloads
from protocols.types.frozen import record
from protocols.types.ids import Stamp

PARKED_VIEWS = 4
"""Payloads are kept for so many views beyond our log: their sender has read more of it."""


@record
class StepReach:
    """The steps that the log allows in the view in which this peer makes steps; valid until the
    next log entry."""

    run: Run
    lineage: int
    view: View
    begun: int
    """The last step before this view; the view before ended with it."""
    last: int
    """The last step that may be completed now."""
    limit: int
    """Payloads of later steps are not kept."""
    first_batch: int
    """The batch of step 0, as if this view had begun with it."""

    def batch(self, step: int) -> int:
        """Number of the batch of which this peer makes its payload of a step."""
        return self.first_batch + step * len(self.view.roster)

    def is_ours(self, event: StepReceived) -> bool:
        """Is it a payload of a step that may be completed now, from the peer that made it?"""
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
    """The bounds of one peer. Values that follow from the log alone are computed once for each
    entry."""

    def __init__(self, me: Identity, run_state: RunState) -> None:
        self.me = me
        self.run_state = run_state
        self._index = -1
        """Log index for which the cached values below are valid."""
        self._reach: StepReach | None = None
        self._last: int | None = None
        self._begun = self._limit = 0
        self._stamp = Stamp(0, 0, 0, 0, 0, 0)

    @property
    def is_member(self) -> bool:
        """Is this peer a member, in this incarnation?"""
        return self.run_state.is_member(self.me.peer, self.me.incarnation)

    @property
    def run(self) -> Run:
        assert self.run_state.run is not None, "there are no steps before the Run"
        return self.run_state.run

    @property
    def newest(self) -> int:
        """Number of the newest view; 0 if there is none."""
        return self.run_state.views[-1].view if self.run_state.views else 0

    @property
    def runs(self) -> bool:
        """Does the newest view make steps?"""
        run_state = self.run_state
        return bool(run_state.views) and not run_state.step_progress.halted

    @property
    def reach(self) -> StepReach | None:
        """The reach in the view in which this peer makes steps; None if it makes none."""
        self._read()
        return self._reach

    @property
    def own_view(self) -> View | None:
        """The running view in which this peer makes steps; None if there is none."""
        reach = self.reach
        return reach.view if reach is not None else None

    @property
    def begun(self) -> int:
        """The last step before the newest view; the view before ended with it."""
        self._read()
        return self._begun

    @property
    def last(self) -> int | None:
        """The last step that may be completed now; None if it depends on this peer's own
        progress."""
        self._read()
        return self._last

    @property
    def limit(self) -> int:
        """Payloads of later steps are not kept; with `floor` it bounds the kept payloads."""
        self._read()
        return self._limit

    def stamp(self, view: int, step: int) -> Stamp:
        stamp, lineage = self._stamp, self.run_state.lineage
        if stamp.round != step or stamp.view != view or stamp.lineage != lineage:
            stamp = self._stamp = Stamp(self.run.run, lineage, view, 0, step, 0)
        return stamp

    def frontier(self, completed: int) -> int:
        """The last step that this peer may complete now. `completed`: the furthest so far."""
        if self.last is not None:
            return self.last
        # Other peers rely on our report.
        progress = self.run_state.step_progress
        return max(progress.step, completed, self.begun)

    def _read(self) -> None:
        """Compute the cached values for the present log."""
        run_state = self.run_state
        if self._index == run_state.index:
            return
        self._index = run_state.index
        self._begun, self._limit = begun(run_state), furthest_step(run_state)
        self._last = self.find_last()
        self._reach = self._find_reach() if self.runs and self.is_member else None

    def _find_reach(self) -> StepReach | None:
        run_state, peer, view = self.run_state, self.me.peer, self.run_state.views[-1]
        if self._last is None or peer not in view.roster or not run_state.counts(peer, view.view):
            return None
        first = view.first_round[0]
        batch = batch_of(run_state, view, first, peer) - first * len(view.roster)
        bounds = (self._begun, self._last, self._limit)
        return StepReach(self.run, run_state.lineage, view, *bounds, batch)

    def find_last(self) -> int | None:
        """Compute `last`."""
        agreed = self.run_state.step_progress
        if agreed.close is not None:
            return agreed.close.last_step
        if agreed.halted:
            return None
        tentative = TENTATIVE_COMMITS * self.run.commit_every_steps
        return min(self.run.outer_steps, max(self._begun, agreed.step) + tentative)

    def highest(self, payloads: Payloads) -> int:
        """An upper bound of `target`."""
        agreed = self.run_state.step_progress
        if agreed.close is not None:
            return agreed.close.last_step
        return max(agreed.step, self.begun, payloads.furthest(self.newest) - 1)

    def lacks(self, step: int, stamp: Stamp, payloads: Payloads) -> bool:
        """Is the stamp of our next step, of which other payloads are missing?"""
        view = self.own_view
        if view is None or (stamp.view, stamp.round) != (view.view, step):
            return False
        return len(payloads.of_step(view.view, step)) < len(view.roster)

    def reach_target(self, step: int, payloads: Payloads) -> bool:
        """Is it certain that no other peer is beyond this step?"""
        return step >= self.highest(payloads) or step >= self.target(payloads)

    def target(self, payloads: Payloads) -> int:
        """The last step that other peers have completed, or will complete with the payloads that
        they hold."""
        agreed = self.run_state.step_progress
        if agreed.close is not None:
            return agreed.close.last_step
        return max(agreed.step, self.begun, self._seen(payloads))

    def _seen(self, payloads: Payloads) -> int:
        """The last step that other peers have completed, concluded from their payloads: the sender
        of a payload has completed the step before. Not counted are peers that lack our payload; and
        if no peer needs ours, a single peer is not believed, since a roster is never more than one
        step apart."""
        if not self.runs:
            return 0
        newest = payloads.newest(self.newest)
        last = sorted(newest.get(peer, 0) for peer in self.run_state.views[-1].roster)
        if self.own_view is not None:
            return min(last[-1] - 1, newest.get(self.me.peer, 0))
        return min(last[-2:]) - 1

    def is_of_roster(self, event: StepReceived) -> bool:
        """Is it a payload of a peer that makes this step, as far as the log says?"""
        stamp = event.stamp
        if stamp.view > self.newest:
            # Its sender has read more of the log. Only its own payload: others cannot be asked for
            # yet.
            return stamp.view <= self.newest + PARKED_VIEWS and event.sender == event.peer
        view = step_view(self.run_state, stamp.round)
        return view is not None and view.view == stamp.view and event.peer in view.roster

    def fits(self, view: int, step: int, floor: int) -> bool:
        """May a held payload still be needed? `floor`: the last step of which none is."""
        owner = step_view(self.run_state, step)
        return step > floor and (view > self.newest or (owner is not None and owner.view == view))

    def floor(self, ours: int) -> int:
        """Payloads up to this step are not needed: the state after them is here, or will be
        transferred. `ours`: the step of our copy of the state; negative if there is none."""
        progress = self.run_state.step_progress
        agreed = progress.base
        # Otherwise a peer without ranks would keep the payloads of the whole run.
        return max(ours, agreed - 2 * self.run.snapshot_every_steps) if ours >= 0 else agreed

    def reaches(self, step: int, payloads: Payloads) -> bool:
        """Can the committed step be reached from the state after this step?"""
        run_state = self.run_state
        steps = range(step + 1, run_state.step_progress.step + 1)
        views = ((step_view(run_state, step), step) for step in steps)
        return all(v is not None and not payloads.missing(v, step) for v, step in views)
