"""The part of RunState that only a stepwise run has.

Must NOT check entries (step_validation.py), nor look at anything but the replicated state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols.messages import log_entries as e
from protocols.messages.snapshot import ReturnedInView
from protocols.messages.step_progress import TENTATIVE_COMMITS
from protocols.types.ids import PeerId

if TYPE_CHECKING:
    from protocols.state.run_state import RunState


def apply(members: RunState, index: int, body: e.StepCommit | e.Halt | e.Close) -> None:
    assert members.run is not None
    match body:
        case e.StepCommit(upto_step=step):
            members.course, members.inner_step = members.course.committed(members.run, body), step
            members.tokens = drawn_at(members, step)
            forget_views(members)
        case e.Halt(view=view, without=without):
            members.returned.update({peer: ReturnedInView(peer, view, index) for peer in without})
            if not members.course.halted:
                members.course = members.course.stopped(index)
        case e.Close():
            members.course = members.course.closed(body)


def stand_still(members: RunState, entry: e.LogEntry, before: int) -> None:
    """Stop the view if a peer of its roster, or a provider of payloads for its Close, is gone.
    `before`: peers of the roster that were members before this entry."""
    course, here = members.course, num_making(members)
    lost = not course.halted and here < len(members.views[-1].roster)
    providers = course.close.providers if course.close is not None else ()
    gone = any(provider.holder not in members.members for provider in providers)
    # If no peer of the roster is left, followers may be unable to reach the agreed end; one of them
    # may have reached it alone.
    fewer = before > 0 or isinstance(entry.body, e.Left | e.Lost)
    nobody = course.close is not None and fewer and here == 0
    if lost or gone or nobody:
        members.course = course.stopped(entry.index)


def num_making(members: RunState) -> int:
    """Peers of the newest roster that are still members, in a stepwise run."""
    view = members.views[-1] if members.stepwise and members.views else None
    if view is None:
        return 0
    return sum(members.counts(peer, view.view) for peer in view.roster)


def begun(members: RunState) -> int:
    """The last step before the newest view; the view before it ended with this step."""
    return members.views[-1].first_round[0] - 1 if members.views else 0


def furthest_step(members: RunState) -> int:
    """The furthest step that a peer can have made: the number of tentative steps is limited."""
    run = members.run
    if run is None:
        return 0
    tentative = (TENTATIVE_COMMITS + 2) * run.commit_every_steps
    return max(begun(members), members.course.step) + tentative


def step_view(members: RunState, step: int) -> e.View | None:
    """The view in which a step is made; None if there is none yet, or the step is before the
    base."""
    close = members.course.close
    for view in reversed(members.views):  # Mostly the newest view; this is called very often.
        if view.first_round[0] <= step:
            ended = close is not None and step > close.last_step and view is members.views[-1]
            return None if ended else view
    return None


def forget_views(members: RunState) -> None:
    """Drop the views of which no peer may replay steps any more."""
    *older, newest = members.views
    kept, end = [newest], newest.first_round[0]
    for view in reversed(older):  # A later view may begin before an earlier one did.
        first = view.first_round[0]
        if first < end and end > members.course.base + 1:
            kept.insert(0, view)
        end = min(end, first)
    drawn = drawn_at(members, kept[0].first_round[0] - 1)
    members.views, members.course = kept, replace(members.course, drawn=drawn)


def drawn_at(members: RunState, step: int) -> int:
    """Number of batches drawn by the steps up to this one: one for each peer of the roster and
    step. Batches are numbered in this order, so none is left out (I10): the next view draws the
    batches of steps that its predecessor did not reach."""
    drawn, end = members.course.drawn, step
    for view in reversed(members.views):  # A later view may begin before an earlier one did.
        first = view.first_round[0]
        drawn += max(0, end + 1 - first) * len(view.roster)
        end = min(end, first - 1)
    return drawn


def batch_of(members: RunState, view: e.View, step: int, peer: PeerId) -> int:
    """Number of the batch of which a peer of the roster makes its payload of this step. Within a
    step the order is that of slots, so a peer that joins is the last one and no other peer's batch
    changes.
    """
    first = view.first_round[0]
    place = sum(_seat(members, other) < _seat(members, peer) for other in view.roster)
    return drawn_at(members, first - 1) + (step - first) * len(view.roster) + place


def _seat(members: RunState, peer: PeerId) -> tuple[int, PeerId]:
    seat = members.seats.get(peer)
    return (seat.slot if seat is not None else -1), peer
