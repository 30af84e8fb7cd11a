"""What a peer waits for, said for people: whom, in what phase, since when, until when (I4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from protocols.record import record

if TYPE_CHECKING:
    from protocols.core import PeerCore
    from protocols.steps import Steps

_OTHERS_STATE = "start a node that has the state or a checkpoint of it again"
_STATE_LOST = (
    "this node has no complete checkpoint to go on from: put its checkpoints back, or "
    f"{_OTHERS_STATE}"
)
Phase = Literal["joining", "waiting", "training", "reducing", "finished", "stopping"]


@record
class Wait:
    """One wait; `since` and `until` are times of the core's clock."""

    phase: Phase
    reason: str
    since: float
    until: float


def describe(core: PeerCore, now: float) -> Wait:
    """The one thing that a person who looks at this peer wants to know."""
    until, catchup = core.deadline, core.standing.catchup
    if core.stopped or core.standing.leaving:
        return Wait("stopping", core.standing.leaving, now, until)
    if core.members.run is None and not core.raft.log.voters:
        return Wait("joining", _first_entries(core), catchup.since, until)
    if core.leader_id is None or not (core.leads or core.leader_id in core.links.up):
        return Wait("waiting", _election(core), core.company.leaderless_since, until)
    if catchup.transfer is not None:
        donors = ", ".join(map(core.name_of, catchup.transfer.givers))
        return Wait("joining", f"state from {donors}", catchup.since, catchup.transfer.late_at)
    if catchup.asking:
        return Wait("joining", _place(core), catchup.since, until)
    if not core.members.views:
        return Wait("waiting", _start(core), core.part.since, until)
    if core.finished:
        return Wait("finished", "", now, until)
    if core.part.steps is not None:
        return _stepping(core, core.part.steps, now)
    for rounds in core.rounds:
        if rounds.own is not None:
            whom = ", ".join(core.name_of(p) for p in rounds.missing()) or "the commit"
            return Wait("reducing", f"round {rounds.own.round}: {whom}", rounds.own.since, until)
    return Wait("training", "" if core.standing.trainers.started else "its ranks", now, until)


def _stepping(core: PeerCore, steps: Steps, now: float) -> Wait:
    """In a stepwise run."""
    if steps.version < 0:
        return Wait("training", "its ranks", now, core.deadline)
    if core.members.course.halted:
        return Wait("waiting", "the next roster", now, core.deadline)
    whom = ", ".join(core.name_of(peer) for peer in steps.missing())
    if whom:
        return Wait("reducing", f"step {steps.version + 1}: {whom}", now, core.deadline)
    return Wait("training", "", now, core.deadline)


def _first_entries(core: PeerCore) -> str:
    """A peer that sends what cannot be read is connected again and again: only its end says so."""
    awaited = "the first entries of the log"
    if core.links.ended is None:
        return awaited
    peer, why = core.links.ended
    return f"{awaited}; the last connection, with {core.name_of(peer)}, ended: {why}"


def _election(core: PeerCore) -> str:
    """Why nobody leads."""
    voters = core.raft.log.voters
    away = [core.name_of(p) for p in voters if p not in core.links.up and p != core.me.peer]
    if 2 * len(away) < len(voters):
        return "an election"
    awaited = f"a majority of the voters: {', '.join(away)} cannot be reached"
    if core.me.incarnation == 1 or not core.standing.catchup.needed or core.standing.kept:
        return awaited
    return f"{awaited}; {_STATE_LOST}"


def _place(core: PeerCore) -> str:
    """Why this peer has no state yet."""
    awaited = "a place in the run"
    members = core.members.members.keys() - {core.me.peer}
    if core.leader_id in members or members & core.links.up or core.standing.kept:
        return awaited
    if not (core.leads or core.leader_id in core.members.witnesses):
        return awaited  # The log that would name the members is not read to its end yet.
    away = ", ".join(map(core.name_of, sorted(members)))
    awaited += f": {away} cannot be reached" if away else ": no member is left to give it the state"
    return f"{awaited}; {_STATE_LOST if core.me.incarnation > 1 else _OTHERS_STATE}"


def _start(core: PeerCore) -> str:
    """Why rounds have not begun."""
    if core.members.run is None:
        return "this node's disk: it does not hold the first entries of the log yet"
    needed = 1 if core.members.restored else core.members.run.peers_min
    more = needed - len(core.members.members)
    if more > 0:
        return f"{more} more member{'s' * (more > 1)} (peers_min = {needed})"
    if core.office is None:
        return "the first view"
    able = core.office.leader.able
    late = [core.name_of(p) for p in core.members.members if p not in able]
    return f"the ranks of {', '.join(late)}" if late else "the first view"
