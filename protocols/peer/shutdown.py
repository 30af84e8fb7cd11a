"""Decides when a peer stops, and its last message to people.

Must NOT stop anything: the core does, and the shell after it.
"""

from protocols.interface.commands import Stop
from protocols.participant.member_status import MemberStatus


def when_finished(member_status: MemberStatus, *, leads: bool) -> Stop | None:
    """A peer leaves when it has applied the last round; the leader is the last one."""
    if leads:  # Also if it was leaving when it was elected: others may need its state.
        receivers = member_status.run_state.receivers
        alone = receivers.keys() <= {member_status.me.peer}
        return Stop("finished", "finished") if alone else None
    if not member_status.leaving and not member_status.catchup.needed:
        member_status.leaving = "finished"  # The leader appends Left; then this peer stops.
    return None


def when_asked(
    member_status: MemberStatus, why: str, *, reachable: bool, finished: bool
) -> Stop | None:
    """A person asks this peer to leave: at once, unless a leader can append Left first."""
    member_status.leaving = member_status.leaving or why
    if reachable and member_status.me.peer in member_status.run_state.readers:
        return None
    return when_out(member_status, finished=finished)


def when_jumped(member_status: MemberStatus, *, finished: bool) -> Stop | None:
    """A snapshot replaced the entry that let this peer go."""
    out = member_status.leaving and member_status.me.peer not in member_status.run_state.readers
    return when_out(member_status, finished=finished) if out else None


def when_out(member_status: MemberStatus, *, finished: bool) -> Stop:
    """This peer is out of the run, as it wanted."""
    return Stop(member_status.leaving or "finished", "finished" if finished else "left")


def without_state() -> Stop:
    """All members ask for a state that no peer has."""
    what = "no node has the run's state any more, in memory or in a complete checkpoint"
    way = "put the checkpoints of a node back and go on with `lowcomm resume`, or start a new run"
    return Stop(f"{what}: {way}", "failed")
