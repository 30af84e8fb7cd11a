"""The role of a peer in its term, and the legal changes of roles (Raft).

Must NOT decide when a peer changes its role (election.py).
"""

from collections import Counter
from enum import Enum


class Role(Enum):
    """The role of a peer in its present term."""

    FOLLOWER = "follower"
    ASKING = "asking"
    """Pre-vote: asks whether a majority would vote for it."""
    CANDIDATE = "candidate"
    LEADER = "leader"


MOVES: frozenset[tuple[Role, Role]] = frozenset(
    {
        (Role.FOLLOWER, Role.ASKING),  # It has not heard of its leader for too long.
        (Role.FOLLOWER, Role.CANDIDATE),  # It was asked to take over, or votes alone.
        (Role.FOLLOWER, Role.LEADER),  # It founds the run.
        (Role.ASKING, Role.ASKING),  # No majority would vote for it yet.
        (Role.ASKING, Role.CANDIDATE),  # A majority would.
        (Role.ASKING, Role.FOLLOWER),  # There is a leader after all.
        (Role.CANDIDATE, Role.ASKING),  # The vote was split.
        (Role.CANDIDATE, Role.CANDIDATE),  # It votes alone, and its disk was full.
        (Role.CANDIDATE, Role.FOLLOWER),  # Another was elected, or its term is over.
        (Role.CANDIDATE, Role.LEADER),  # A majority voted for it.
        (Role.LEADER, Role.FOLLOWER),  # Its term is over, or no majority answers.
    }
)
"""All legal changes of roles."""


class RoleChanges(Counter[tuple[Role, Role]]):
    """Counts of one peer's changes of role."""

    def note(self, before: Role, after: Role) -> None:
        if (before, after) != (Role.FOLLOWER, Role.FOLLOWER):
            assert (before, after) in MOVES, f"no peer goes from {before} to {after}"
            self[before, after] += 1
