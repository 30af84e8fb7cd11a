"""The part of RunState that only a stepwise run has.

Must NOT check entries (step_validation.py), nor look at anything but the replicated state.
"""

from __future__ import annotations

from dataclasses import replace

from protocols.messages import log_entries as e
from protocols.messages.snapshot import ReturnedInView
from protocols.messages.step_progress import TENTATIVE_COMMITS
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId


def apply(run_state: RunState, index: int, body: e.StepCommit | e.Halt | e.Close) -> None:
    assert run_state.run is not None
    match body:
        case e.StepCommit(upto_step=step):
            run_state.step_progress, run_state.inner_step = (
                run_state.step_progress.committed(run_state.run, body),
                step,
            )
            run_state.tokens = drawn_at(run_state, step)
            forget_views(run_state)
        case e.Halt(view=view, without=without):
            run_state.returned.update({peer: ReturnedInView(peer, view, index) for peer in without})
            if not run_state.step_progress.halted:
                run_state.step_progress = run_state.step_progress.stopped(index)
        case e.Close():
            run_state.step_progress = run_state.step_progress.closed(body)


def stand_still(run_state: RunState, entry: e.LogEntry, before: int) -> None:
    """Stop the view if a peer of its roster, or a provider of payloads for its Close, is gone.
    `before`: peers of the roster that were members before this entry."""
    step_progress, here = run_state.step_progress, num_making(run_state)
    lost = not step_progress.halted and here < len(run_state.views[-1].roster)
    providers = step_progress.close.providers if step_progress.close is not None else ()
    gone = any(provider.holder not in run_state.members for provider in providers)
    # If no peer of the roster is left, followers may be unable to reach the agreed end; one of them
    # may have reached it alone.
    fewer = before > 0 or isinstance(entry.body, e.Left | e.Lost)
    none_left = step_progress.close is not None and fewer and here == 0
    if lost or gone or none_left:
        run_state.step_progress = step_progress.stopped(entry.index)


def num_making(run_state: RunState) -> int:
    """Peers of the newest roster that are still members, in a stepwise run."""
    view = run_state.views[-1] if run_state.stepwise and run_state.views else None
    if view is None:
        return 0
    return sum(run_state.counts(peer, view.view) for peer in view.roster)


def begun(run_state: RunState) -> int:
    """The last step before the newest view; the view before it ended with this step."""
    return run_state.views[-1].first_round[0] - 1 if run_state.views else 0


def furthest_step(run_state: RunState) -> int:
    """The furthest step that a peer can have made: the number of tentative steps is limited."""
    run = run_state.run
    if run is None:
        return 0
    tentative = (TENTATIVE_COMMITS + 2) * run.commit_every_steps
    return max(begun(run_state), run_state.step_progress.step) + tentative


def step_view(run_state: RunState, step: int) -> e.View | None:
    """The view in which a step is made; None if there is none yet, or the step is before the
    base."""
    close = run_state.step_progress.close
    for view in reversed(run_state.views):  # Mostly the newest view; this is called very often.
        if view.first_round[0] <= step:
            ended = close is not None and step > close.last_step and view is run_state.views[-1]
            return None if ended else view
    return None


def forget_views(run_state: RunState) -> None:
    """Drop the views of which no peer may replay steps any more."""
    *older, newest = run_state.views
    kept, end = [newest], newest.first_round[0]
    for view in reversed(older):  # A later view may begin before an earlier one did.
        first = view.first_round[0]
        if first < end and end > run_state.step_progress.base + 1:
            kept.insert(0, view)
        end = min(end, first)
    drawn = drawn_at(run_state, kept[0].first_round[0] - 1)
    run_state.views, run_state.step_progress = kept, replace(run_state.step_progress, drawn=drawn)


def drawn_at(run_state: RunState, step: int) -> int:
    """Number of batches drawn by the steps up to this one: one for each peer of the roster and
    step. Batches are numbered in this order, so none is left out (I10): the next view draws the
    batches of steps that its predecessor did not reach."""
    drawn, end = run_state.step_progress.drawn, step
    for view in reversed(run_state.views):  # A later view may begin before an earlier one did.
        first = view.first_round[0]
        drawn += max(0, end + 1 - first) * len(view.roster)
        end = min(end, first - 1)
    return drawn


def batch_of(run_state: RunState, view: e.View, step: int, peer: PeerId) -> int:
    """Number of the batch of which a peer of the roster makes its payload of this step. Within a
    step the order is that of slots, so a peer that joins is the last one and no other peer's batch
    changes.
    """
    first = view.first_round[0]
    place = sum(_seat(run_state, other) < _seat(run_state, peer) for other in view.roster)
    return drawn_at(run_state, first - 1) + (step - first) * len(view.roster) + place


def _seat(run_state: RunState, peer: PeerId) -> tuple[int, PeerId]:
    seat = run_state.seats.get(peer)
    return (seat.slot if seat is not None else -1), peer
