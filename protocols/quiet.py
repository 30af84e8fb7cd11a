"""Events after which nothing can be done that could not be done before: most of what comes.

The core looks for what is possible after each event; here is when it need not look. Whatever is
not named here counts as news. Must NOT hold anything, nor decide what is possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from protocols import events as v
from protocols import messages as m
from protocols.clock import NEVER
from protocols.raft import Raft

if TYPE_CHECKING:
    from protocols.core import PeerCore
    from protocols.participant import Participant

HEARTBEATS = (m.Heartbeat, m.Here)
BEATS = (*HEARTBEATS, m.Append, m.Appended)
"""What comes all the time, and mostly brings nothing."""
INNER = (
    *(v.Persisted, v.SliceBegun, v.SliceReceived, v.ResultReceived),
    *(v.ContributionReady, v.Encoded, v.PartReduced, v.StepMade, v.StepReceived),
)
"""What comes for our log and our rounds; our state is the same after it."""
REPORTS = (m.Ready, m.Hold, m.Have, m.Waiting, m.Kept, m.Able, m.Unable, m.Wants, m.Told, m.Stepped)
"""What peers tell the leader about themselves, and it remembers."""


def mark(raft: Raft) -> tuple[object, ...]:
    """Equal while what is committed, and who leads, are the same (and our disk is as good)."""
    return (raft.term, raft.leader, raft.role, raft.commit_index, raft.disk.works)


def reached(core: PeerCore) -> tuple[object, ...]:
    """Equal before and after a step that made no other one possible: what we say to others does
    not, until they answer."""
    raft, ours = core.raft, core.standing
    return (
        core.told_myself,
        raft.log.last_index,
        core.members.index,
        raft.role,
        raft.term,
        ours.trainers.able,
        ours.catchup.asking,
        ours.leaving,
    )


def is_heartbeat(event: v.Event) -> TypeGuard[v.MessageReceived]:
    """Somebody is still there: nothing else can come of it but a word that we are, too."""
    return isinstance(event, v.MessageReceived) and isinstance(event.message, HEARTBEATS)


def is_pulse(event: v.Event) -> TypeGuard[v.MessageReceived]:
    """Said only so that somebody hears it; the leader's is an Append without entries."""
    if not isinstance(event, v.MessageReceived):
        return False
    message = event.message
    return isinstance(message, HEARTBEATS) or (
        isinstance(message, m.Append) and not message.entries
    )


def is_beat(event: v.Event) -> bool:
    """Nothing can follow from it unless our log, or the mark, is another one now."""
    return isinstance(event, v.MessageReceived) and isinstance(event.message, BEATS)


def is_inner(event: v.Event, core: PeerCore, now: float) -> bool:
    """It changes nothing about who is connected or who leads, unless the mark is another one now;
    and nothing about them is due. Whoever may meet another branch tells it when all is quiet."""
    if isinstance(event, v.MessageReceived):
        # Who heard no leader hears it with the first entries that come.
        found = core.company.leaderless_since == NEVER
        inner = isinstance(event.message, REPORTS) or (
            found and isinstance(event.message, m.Append)
        )
    else:
        inner = isinstance(event, INNER)
    due = now >= core.deadline or now >= core.links.mend_at
    return inner and not due and core.company.forks.out_of_reach


def is_report(event: v.Event, core: PeerCore, now: float) -> bool:
    """Nothing can follow from it but a decision of ours: only leaders look at what peers report.
    Unless something else is due as well; or the peer said what nobody may, and we hung up."""
    return (
        isinstance(event, v.MessageReceived)
        and isinstance(event.message, REPORTS)
        and core.office is not None
        and now < core.deadline
        and event.peer in core.links.up
    )


def is_quiet(event: v.Event, core: PeerCore, now: float) -> bool:
    """Nothing can follow from it unless the mark is another one now. The core's deadline and its
    patience are still those of before this event: what is due by then may well make something
    possible."""
    raft, part, relaying = core.raft, core.part, core.relaying
    match event:
        case v.DeadlineReached():
            # A leader has decisions to make, too, and a relay reports to pass on.
            return not raft.leads and now < min(core.patience, relaying.deadline)
        case v.MessageReceived(message=m.Ready()):
            quiet = not raft.leads  # Only a leader counts who is ready.
        case v.MessageReceived(message=m.Append()):
            quiet = True  # What is not committed means nothing yet.
        case v.MessageReceived(message=m.Kept()):
            # Nobody looks at checkpoints while somebody can give a state.
            office = core.office
            quiet = office is not None and office.leader.admission.hopeless_since == NEVER
        case v.MessageReceived(message=m.Seek() | m.Leads()):
            quiet = not raft.leads  # About connections alone; a leader plans relays at any event.
        case v.Persisted():
            # A candidate's own vote may be safe now; a leader that wants to go may hand over.
            quiet = raft.leader is not None and not (raft.leads and core.standing.leaving)
        case v.SliceBegun() | v.SliceReceived() | v.ResultReceived():
            quiet = not completes(part, event)
        case v.StepReceived():
            quiet = part.steps is not None and part.steps.still_lacks(event)
        case _:
            return False
    return quiet and now < min(core.deadline, relaying.deadline)


def completes(part: Participant, event: v.SliceBegun | v.SliceReceived | v.ResultReceived) -> bool:
    """Might it be the last one that a sum or a step waited for? Nothing follows from others."""
    for rounds in part.of(event.stamp):
        plan = rounds.members.open_plan(rounds.fragment)
        if plan is None or plan.stamp != event.stamp:
            return True  # Of a committed round, or of another attempt.
        if not isinstance(event, v.ResultReceived):
            summed = (plan.stamp, event.part) in rounds.held.sums
            return not summed and bool(rounds.held.terms(plan, event.part, part.me.peer))
        return not rounds.held.missing_parts(event.stamp, plan.num_parts)
    return False
