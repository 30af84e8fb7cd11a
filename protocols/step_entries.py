"""What the log means to a stepwise run: Membership's part that only such a run has.

Must NOT judge entries (step_rules.py), nor look at anything but what the log led to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import entries as e
from protocols.image import Returned

if TYPE_CHECKING:
    from protocols.membership import Membership


def apply(members: Membership, index: int, body: e.StepCommit | e.Halt | e.Close) -> None:
    assert members.run is not None
    match body:
        case e.StepCommit(upto_step=step):
            members.course, members.inner_step = members.course.committed(members.run, body), step
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
    later = [view.first_round[0] for view in members.views[1:]]
    members.views = [
        *(
            view
            for view, end in zip(members.views, later, strict=False)
            if view.first_round[0] < end > members.course.base + 1
        ),
        *members.views[-1:],
    ]
