"""Decides when a peer stops, and its last message to people.

Must NOT stop anything: the core does, and the shell after it.
"""

from protocols.acts.statements import author, reason_of
from protocols.interface.commands import Stop
from protocols.messages.log_entries import Steered
from protocols.participant.member_status import MemberStatus

FINISHED = "finished"
"""Why a peer leaves which no person asked to: it has applied the last round."""


def when_finished(member_status: MemberStatus, *, leads: bool) -> Stop | None:
    """A peer leaves when it has applied the last round; the leader is the last one."""
    if leads:  # Also if it was leaving when it was elected: others may need its state.
        receivers = member_status.run_state.receivers
        alone = receivers.keys() <= {member_status.me.peer}
        return Stop(FINISHED, "finished") if alone else None
    if not member_status.leaving and not member_status.catchup.needed:
        member_status.leaving = FINISHED  # The leader appends Left; then this peer stops.
    return None


def when_rolled_back(member_status: MemberStatus, *, finished: bool) -> None:
    """The run went back to earlier versions: behind the last round, it needs this peer again."""
    if member_status.leaving == FINISHED and not finished:
        member_status.leaving = ""


def when_asked(
    member_status: MemberStatus, why: str, *, reachable: bool, finished: bool
) -> Stop | None:
    """A person asks this peer to leave: at once, unless a leader can append Left first."""
    member_status.leaving = member_status.leaving or why
    if reachable and member_status.me.peer in member_status.run_state.readers:
        return None
    return when_out(member_status, finished=finished)


def when_jumped(member_status: MemberStatus, *, finished: bool) -> Stop | None:
    """A snapshot replaced the entry that let this peer go. (After `when_rolled_back`.)"""
    out = member_status.leaving and member_status.me.peer not in member_status.run_state.readers
    return when_out(member_status, finished=finished) if out else None


def when_kicked(act: Steered | None) -> Stop | None:
    """The run has removed this incarnation of this peer with an act."""
    if act is None:
        return None
    why = f"this node was removed from the run by {author(act)}{reason_of(act)}"
    return Stop(f"{why}: `lowcomm resume DIRECTORY` brings it back", "refused")


def when_out(member_status: MemberStatus, *, finished: bool) -> Stop:
    """This peer is out of the run, as it wanted."""
    return Stop(member_status.leaving or FINISHED, "finished" if finished else "left")


def without_state() -> Stop:
    """All members ask for a state that no peer has."""
    what = "no node has the run's state any more, in memory or in a complete checkpoint"
    way = "put the checkpoints of a node back and go on with `lowcomm resume`, or start a new run"
    return Stop(f"{what}: {way}", "failed")
