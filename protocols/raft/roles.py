"""What a peer is in its term, and which changes of that are legal (Raft).

Must NOT decide when a peer changes its role: node.py does.
"""

from collections import Counter
from enum import Enum


class Role(Enum):
    """What a peer is in its present term."""

    FOLLOWER = "follower"
    ASKING = "asking"
    """Pre-vote: would a majority follow us?"""
    CANDIDATE = "candidate"
    LEADER = "leader"


MOVES: frozenset[tuple[Role, Role]] = frozenset(
    {
        (Role.FOLLOWER, Role.ASKING),  # It has not heard of its leader for too long.
        (Role.FOLLOWER, Role.CANDIDATE),  # It was asked to take over, or votes alone.
        (Role.FOLLOWER, Role.LEADER),  # It founds the run.
        (Role.ASKING, Role.ASKING),  # Nobody would follow it yet.
        (Role.ASKING, Role.CANDIDATE),  # A majority would.
        (Role.ASKING, Role.FOLLOWER),  # Somebody leads after all.
        (Role.CANDIDATE, Role.ASKING),  # The vote was split.
        (Role.CANDIDATE, Role.CANDIDATE),  # It votes alone, and its disk was full.
        (Role.CANDIDATE, Role.FOLLOWER),  # Another was elected, or its term is over.
        (Role.CANDIDATE, Role.LEADER),  # A majority voted for it.
        (Role.LEADER, Role.FOLLOWER),  # Its term is over, or nobody answers any more.
    }
)
"""Every legal change of role; there is no other."""


class Moves(Counter[tuple[Role, Role]]):
    """How often one peer has changed its role, and how."""

    def note(self, before: Role, after: Role) -> None:
        if (before, after) != (Role.FOLLOWER, Role.FOLLOWER):
            assert (before, after) in MOVES, f"no peer goes from {before} to {after}"
            self[before, after] += 1
