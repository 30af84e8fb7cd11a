"""When a peer goes, and the last sentence that it says.

Must NOT end anything: the core stops, and the shell after it.
"""

from protocols.interface.commands import Stop
from protocols.peer.member_status import Standing


def when_finished(standing: Standing, *, leads: bool) -> Stop | None:
    """Everybody goes when it has applied the last round; the leader goes last."""
    if leads:  # Also if it was on its way when it was elected: others may need its state.
        alone = standing.members.receivers.keys() <= {standing.me.peer}
        return Stop("finished", "finished") if alone else None
    if not standing.leaving and not standing.catchup.needed:
        standing.leaving = "finished"  # The leader writes it down; then we stop.
    return None


def when_asked(standing: Standing, why: str, *, reachable: bool, finished: bool) -> Stop | None:
    """Somebody wants us to go: at once, unless a leader can write it down first."""
    standing.leaving = standing.leaving or why
    if reachable and standing.me.peer in standing.members.readers:
        return None
    return when_out(standing, finished=finished)


def when_jumped(standing: Standing, *, finished: bool) -> Stop | None:
    """A snapshot took us beyond the entry that let us go."""
    out = standing.leaving and standing.me.peer not in standing.members.readers
    return when_out(standing, finished=finished) if out else None


def when_out(standing: Standing, *, finished: bool) -> Stop:
    """We are out of the run, as we wanted."""
    return Stop(standing.leaving or "finished", "finished" if finished else "left")


def without_state() -> Stop:
    """All members ask for a state that nobody has."""
    what = "no node has the run's state any more, in memory or in a complete checkpoint"
    way = "put the checkpoints of a node back and go on with `lowcomm resume`, or start a new run"
    return Stop(f"{what}: {way}", "failed")
