"""What the log means to a stepwise run: Membership's part that only such a run has.

Must NOT judge entries (step_validation.py), nor look at anything but what the log led to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols.messages import log_entries as e
from protocols.messages.snapshot import Returned
from protocols.messages.step_progress import TENTATIVE_COMMITS
from protocols.types.ids import PeerId

if TYPE_CHECKING:
    from protocols.state.run_state import Membership


def apply(members: Membership, index: int, body: e.StepCommit | e.Halt | e.Close) -> None:
    assert members.run is not None
    match body:
        case e.StepCommit(upto_step=step):
            members.course, members.inner_step = members.course.committed(members.run, body), step
            members.tokens = drawn_at(members, step)
            forget_views(members)
        case e.Halt(view=view, without=without):
            members.returned.update({peer: Returned(peer, view, index) for peer in without})
            if not members.course.halted:
                members.course = members.course.stopped(index)
        case e.Close():
            members.course = members.course.closed(body)


def stand_still(members: Membership, entry: e.LogEntry, before: int) -> None:
    """Who makes steps with somebody who is gone stops; so does who needs its payloads.
    `before`: how many of the roster were in before this entry."""
    course, here = members.course, num_making(members)
    lost = not course.halted and here < len(members.views[-1].roster)
    providers = course.close.providers if course.close is not None else ()
    gone = any(provider.holder not in members.members for provider in providers)
    # Of nobody left, those who only followed may not even get to the end that was agreed; one of
    # them may have got there alone.
    fewer = before > 0 or isinstance(entry.body, e.Left | e.Lost)
    nobody = course.close is not None and fewer and here == 0
    if lost or gone or nobody:
        members.course = course.stopped(entry.index)


def num_making(members: Membership) -> int:
    """How many of the newest roster are in still, in a stepwise run."""
    view = members.views[-1] if members.stepwise and members.views else None
    if view is None:
        return 0
    return sum(members.counts(peer, view.view) for peer in view.roster)


def begun(members: Membership) -> int:
    """The last step before the newest view: the view before ended with it, for all."""
    return members.views[-1].first_round[0] - 1 if members.views else 0


def furthest_step(members: Membership) -> int:
    """Beyond that nobody can be, whatever it says: what is not committed is tentative, and of that
    there is an end."""
    run = members.run
    if run is None:
        return 0
    tentative = (TENTATIVE_COMMITS + 2) * run.commit_every_steps
    return max(begun(members), members.course.step) + tentative


def step_view(members: Membership, step: int) -> e.View | None:
    """In whose roster a step is made, as far as the log says; None: nobody's (yet, or any
    more: what came before the base is forgotten)."""
    close = members.course.close
    for view in reversed(members.views):  # Mostly the newest one: this is asked for all the time.
        if view.first_round[0] <= step:
            ended = close is not None and step > close.last_step and view is members.views[-1]
            return None if ended else view
    return None


def forget_views(members: Membership) -> None:
    """A view of a stepwise run stays while somebody may replay steps of it."""
    *older, newest = members.views
    kept, end = [newest], newest.first_round[0]
    for view in reversed(older):  # A later one may begin before an earlier one did.
        first = view.first_round[0]
        if first < end and end > members.course.base + 1:
            kept.insert(0, view)
        end = min(end, first)
    drawn = drawn_at(members, kept[0].first_round[0] - 1)
    members.views, members.course = kept, replace(members.course, drawn=drawn)


def drawn_at(members: Membership, step: int) -> int:
    """So many batches the steps up to this one were made of, one of each of a roster. Batches are
    numbered in this order, so they are the first ones of the run (I10): what a step was to be made
    of that its view did not come to, the next view's steps are made of."""
    drawn, end = members.course.drawn, step
    for view in reversed(members.views):  # As above.
        first = view.first_round[0]
        drawn += max(0, end + 1 - first) * len(view.roster)
        end = min(end, first - 1)
    return drawn


def batch_of(members: Membership, view: e.View, step: int, peer: PeerId) -> int:
    """Number of the batch that a peer of the roster makes its payload of this step from.

    Within a step they go by seats: who comes is the last one, and changes nobody else's.
    """
    first = view.first_round[0]
    place = sum(_seat(members, other) < _seat(members, peer) for other in view.roster)
    return drawn_at(members, first - 1) + (step - first) * len(view.roster) + place


def _seat(members: Membership, peer: PeerId) -> tuple[int, PeerId]:
    seat = members.seats.get(peer)
    return (seat.slot if seat is not None else -1), peer
