"""The progress of a run after one of its rounds or steps, as checkpoints and Restores state it.

Must NOT change anything, nor know which peer has which state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.state.step_entries import drawn_at
from protocols.types.sample_ranges import Remaining, union

if TYPE_CHECKING:
    from protocols.state.run_state import RunState


def progress_at(run_state: RunState, round_: int) -> tuple[int, int]:
    """(inner steps, tokens) after an anchor round: later commits are subtracted. In a stepwise run
    (step, batches), since all batches have the same number of tokens."""
    if run_state.stepwise:
        return round_, drawn_at(run_state, round_)
    later = [x.contributors for x in run_state.commits_after(round_)]
    steps = sum(max((c.steps for c in terms), default=0) for terms in later)
    return run_state.inner_step - steps, run_state.tokens - sum(c.tokens for x in later for c in x)


def remaining_at(run_state: RunState, round_: int) -> Remaining | None:
    """The uncommitted samples after this anchor round; None if it is too long ago. In a stepwise
    run they are batches, and none is ever left out."""
    if run_state.stepwise:
        here = run_state.step_progress.base <= round_ <= run_state.step_progress.step
        return Remaining(drawn_at(run_state, round_)) if here else None
    ahead = run_state.commits_after(round_)
    if len(ahead) < run_state.committed(0) - round_:
        return None
    ledger = run_state.ledger
    samples = ledger.remaining.samples
    for taken in (x for commit in ahead for x in commit.samples):
        samples = union(samples, taken)
    return Remaining(ledger.frontier, samples)
