"""What a peer knows of its present term: its vote, its role, and the leader.

Must NOT decide when a term or a role begins (election.py).
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from protocols.types.clock import NEVER
from protocols.types.ids import PeerId


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


@dataclass(slots=True)
class TermState:
    """The present term as one peer sees it. Term and vote survive a crash; the rest does not."""

    term: int = 0
    vote: str = ""
    """The peer that has this peer's vote in the term; "" if none has."""
    proved: PeerId | None = None
    """The peer that has proved that it leads the term."""
    refused: PeerId | None = None
    """The leader of the term that is not followed, since it sent a log that no leader can have."""
    role: Role = Role.FOLLOWER
    leads: bool = False
    """Whether the role is that of the leader."""
    role_changes: RoleChanges = field(default_factory=RoleChanges)
    leader: PeerId | None = None
    """The leader of the term; None if it is not known."""
    leader_down: bool = False
    """The connection with the leader has ended; other peers may have noticed it too."""
    leader_durable: int = 0
    """Index up to which the leader's disk holds the same log as ours."""
    heard_at: float = -NEVER
    """When a leader was heard last, seconds."""

    def begin_term(self, term: int, vote: str) -> None:
        """A term begins, or this peer gives its vote in it."""
        if term != self.term:
            self.proved = self.refused = None
        self.term, self.vote = term, vote
        self.leader_durable = 0

    def become(self, role: Role, leader: PeerId | None) -> None:
        """Change the role, or the leader that this peer follows."""
        self.role_changes.note(self.role, role)
        self.role, self.leader, self.leader_down = role, leader, False
        self.leads = role is Role.LEADER

    def follows(self, now: float, timeout_s: float) -> bool:
        """This peer leads, or heard its leader within `timeout_s`."""
        if self.leads:
            return True
        recent = now < self.heard_at + timeout_s
        return self.leader is not None and not self.leader_down and recent
