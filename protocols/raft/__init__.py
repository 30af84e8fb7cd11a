"""Raft: elections, the replicated log, durability.

In: messages of other voters, times, and the disk's confirmations. Out: messages, Persist commands,
and the index up to which the log is committed. Terms follow Ongaro and Ousterhout (2014) and
Ongaro's thesis: pre-vote, check-quorum, leadership transfer, membership changes by one voter at a
time. Must NOT know what a log entry means beyond which peers vote, and must not send a message that
depends on a write before the disk has confirmed it (durability.py).

Start reading: node.py, then election.py and replication.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.raft.durability import RETRY_S
    from protocols.raft.log import Voters, voters_after
    from protocols.raft.mandate import VoteStatement
    from protocols.raft.node import Raft
    from protocols.raft.term_state import MOVES, Role
    from protocols.raft.writes import HANG_MAX_S

__all__ = [
    "HANG_MAX_S",
    "MOVES",
    "RETRY_S",
    "Raft",
    "Role",
    "VoteStatement",
    "Voters",
    "voters_after",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "durability": "RETRY_S",
        "log": "Voters voters_after",
        "mandate": "VoteStatement",
        "node": "Raft",
        "term_state": "MOVES Role",
        "writes": "HANG_MAX_S",
    },
)
