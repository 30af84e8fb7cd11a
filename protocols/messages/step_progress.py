"""The progress of a stepwise run as the log states it: committed steps, and whether the view
stands.

A part of RunState and of its RunStateSnapshot. Must NOT know peers (state/run_state.py), nor
decide anything (leader/step_views.py).
"""

from dataclasses import replace

from protocols.messages.log_entries import Close, Run, StepCommit
from protocols.types.frozen import record
from protocols.types.ids import Version

TENTATIVE_COMMITS = 4
"""Peers stop when so many commits are missing, since they keep all payloads since the last one."""


@record
class StepProgress:
    """The progress after some entry of the log."""

    step: int = 0
    """The last committed step."""
    digest: str = ""
    """Digest of the state after `step`; "" before the first commit."""
    view: int = 0
    """The view that committed `step`."""
    base: int = 0
    """The last committed step of which every peer keeps a copy of the state."""
    base_digest: str = ""
    halted: int = 0
    """Log index of the entry that made the newest view stop; 0: it runs."""
    close: Close | None = None
    """How the newest view ends; None also if a peer is gone that had to provide payloads for it."""
    drawn: int = 0
    """Batches that were drawn before the oldest remembered view."""

    def committed(self, run: Run, commit: StepCommit) -> "StepProgress":
        step, digest = commit.upto_step, commit.state_digest
        course = replace(self, step=step, digest=digest, view=commit.view)
        return replace(course, base=step, base_digest=digest) if keeps(run, step) else course

    def after_rollback(self, version: Version, *, drawn: int) -> "StepProgress":
        """The progress after a rollback to this version. `drawn`: batches drawn until then."""
        step, digest = version.round, version.state_digest
        return StepProgress(step=step, digest=digest, base=step, base_digest=digest, drawn=drawn)

    def stopped(self, index: int) -> "StepProgress":
        """The view stops (again): every peer reports, and an earlier Close is void."""
        return replace(self, halted=index, close=None)

    def closed(self, close: Close) -> "StepProgress":
        return replace(self, close=close)

    def began(self) -> "StepProgress":
        """A new view begins."""
        return replace(self, halted=0, close=None)


def commits(run: Run, step: int) -> bool:
    """Do all peers report their state after this step?"""
    return step % run.commit_every_steps == 0 or step == run.outer_steps


def keeps(run: Run, step: int) -> bool:
    """Do all peers copy their state after this step?"""
    return step % run.snapshot_every_steps == 0 or step == run.outer_steps
