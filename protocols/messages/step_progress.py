"""How far a stepwise run is, and whether it stands still: what the log says beyond its views.

Plain data, part of Membership and of its image. Must NOT know peers (state/run_state.py), nor
decide anything (leader/step_views.py).
"""

from dataclasses import replace

from protocols.messages.log_entries import Close, Run, StepCommit
from protocols.types.frozen import record
from protocols.types.ids import Version

TENTATIVE_COMMITS = 4
"""So many commits may be missing before peers stop: payloads since the last one are kept."""


@record
class Course:
    """One for each state of the log."""

    step: int = 0
    """The last committed one."""
    digest: str = ""
    """Of the state after it; "" before the first commit."""
    view: int = 0
    """The one that committed it."""
    base: int = 0
    """The last committed step of which everybody keeps a copy."""
    base_digest: str = ""
    halted: int = 0
    """Log index of what made the newest view stop; 0: it runs."""
    close: Close | None = None
    """How the newest view ends, unless somebody who had to provide for that is gone."""
    drawn: int = 0
    """Batches that the steps before the oldest remembered view were made of."""

    def committed(self, run: Run, commit: StepCommit) -> "Course":
        step, digest = commit.upto_step, commit.state_digest
        course = replace(self, step=step, digest=digest, view=commit.view)
        return replace(course, base=step, base_digest=digest) if keeps(run, step) else course

    def restored(self, version: Version, *, drawn: int) -> "Course":
        """Back to a cut: nothing after it ever was. `drawn`: batches until then."""
        step, digest = version.round, version.state_digest
        return Course(step=step, digest=digest, base=step, base_digest=digest, drawn=drawn)

    def stopped(self, index: int) -> "Course":
        """Everybody reports (again): how the view would have ended is void."""
        return replace(self, halted=index, close=None)

    def closed(self, close: Close) -> "Course":
        return replace(self, close=close)

    def began(self) -> "Course":
        """A new view."""
        return replace(self, halted=0, close=None)


def commits(run: Run, step: int) -> bool:
    """Is this a step whose state everybody reports?"""
    return step % run.commit_every_steps == 0 or step == run.outer_steps


def keeps(run: Run, step: int) -> bool:
    """Is it one whose state everybody copies?"""
    return step % run.snapshot_every_steps == 0 or step == run.outer_steps
