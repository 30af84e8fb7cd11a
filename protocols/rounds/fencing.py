"""Decides which payloads may still count, by the log that this peer has read (I3).

Must NOT remember payloads, nor look at anything but their stamps and senders.
"""

from protocols.messages.log_entries import Commit
from protocols.state.parts import OWNERS_MAX
from protocols.state.round_plan import RoundPlan
from protocols.state.run_state import RunState
from protocols.types.frozen import record
from protocols.types.ids import PeerId, Stamp

PARKED_ROUNDS = 2
"""Payloads are kept for so many rounds beyond the last commit; a faster peer is one ahead."""
PARKED_PLANS = 4
"""Payloads are kept for so many views or attempts beyond our log: their sender has read more of
it."""


@record
class Fence:
    """The fence of one fragment. It bounds the payloads that a member can make this peer keep."""

    run_state: RunState
    fragment: int

    @property
    def open_round(self) -> int:
        return self.run_state.committed(self.fragment) + 1

    def may_count(self, stamp: Stamp, part: int = 0) -> bool:
        """Is the round open, and the view still valid? A new attempt uses slices of earlier
        ones."""
        first = self.open_round
        if not self._in_run(stamp) or part >= OWNERS_MAX:
            return False
        if not first <= stamp.round < first + PARKED_ROUNDS:
            return False  # The round is committed: counting the payload would average two models.
        plan = self._plan(stamp.round)
        oldest = plan.stamp.view if plan else 0
        newest = self.run_state.views[-1].view if self.run_state.views else 0
        return oldest <= stamp.view <= newest + PARKED_PLANS

    def may_slice(self, stamp: Stamp, part: int, sender: PeerId, me: PeerId) -> bool:
        """As `may_count`. In a gossip run a slice is the whole fragment, and is kept from the
        partner only."""
        if not self.may_count(stamp, part):
            return False
        plan = self._plan(stamp.round) if self.run_state.gossip else None
        if plan is None or plan.stamp.view != stamp.view:
            return True  # The sender knows more about a view that we have not read.
        return sender in plan.summed_by(me)

    def may_result(self, stamp: Stamp, part: int, sender: PeerId) -> bool:
        """Is the result of the committed attempt, or of one that can still be committed?"""
        if self.run_state.gossip:
            return False  # Each peer makes its own result.
        commit = self.run_state.commit(self.fragment, stamp.round)
        if commit is not None:
            return stamp == self.stamp_of(commit) and part < len(commit.borders) - 1
        if not self.may_count(stamp, part):
            return False
        plan = self._plan(stamp.round)
        if plan is not None and plan.stamp == stamp:
            return plan.owner_of(part) == sender
        same_view = plan is not None and plan.stamp.view == stamp.view
        oldest = plan.stamp.attempt + 1 if plan is not None and same_view else 0
        return oldest <= stamp.attempt < oldest + PARKED_PLANS

    def stamp_of(self, commit: Commit) -> Stamp:
        """The stamp of the committed attempt."""
        run = self.run_state.run
        assert run is not None
        return Stamp(
            run=run.run,
            lineage=self.run_state.lineage,
            view=commit.view,
            fragment=commit.fragment,
            round=commit.round,
            attempt=commit.attempt,
        )

    def _plan(self, round_: int) -> RoundPlan | None:
        """The plan of a round; mostly that of the open one, which is cached."""
        if round_ == self.open_round:
            return self.run_state.open_plan(self.fragment)
        return self.run_state.plan(self.fragment, round_)

    def _in_run(self, stamp: Stamp) -> bool:
        run = self.run_state.run
        return run is not None and stamp.run == run.run and stamp.lineage == self.run_state.lineage
