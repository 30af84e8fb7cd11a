"""Up to which index the log is committed: as the leader knows it, and as a follower may conclude.

Must NOT count copies of an entry of an earlier term: a newer leader may still replace it (the Raft
paper, figure 8).
"""

from protocols.raft.log import Log
from protocols.raft.replication import Replication
from protocols.raft.term_state import TermState
from protocols.types.ids import PeerId


def as_leader(
    log: Log, replication: Replication, term: int, durable_index: int, commit_index: int
) -> int:
    """Commit the entries of our own term that a majority holds, and all entries before them."""
    index = replication.held(durable_index)
    if index > commit_index and log.term_at(index) == term:
        return index
    return commit_index


def as_follower(
    log: Log, state: TermState, me: PeerId, durable_index: int, commit_index: int
) -> int:
    """Commit entries of this term that are on the leader's disk and on ours, if we two are more
    than half of the voters: a round trip before the leader's message."""
    index = min(state.leader_durable, durable_index)
    new = index > commit_index and log.term_at(index) == state.term
    if new and state.leader and log.is_majority({me, state.leader}):
        return index
    return commit_index
