"""What the log led to, as plain data: a snapshot of Membership, which makes it and reads it."""

from __future__ import annotations

from protocols.messages.log_entries import (
    Attempt,
    Commit,
    Cut,
    Restore,
    Revoked,
    Run,
    TokenRevoked,
    TokenSpent,
    View,
)
from protocols.messages.step_progress import Course
from protocols.types.frozen import record
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.sample_ranges import Samples


@record
class Granted:
    """The newest cut of a receiver."""

    index: int
    cut: Cut


@record
class Losses:
    """How often a peer went away without a word."""

    peer: PeerId
    count: int


@record
class Returned:
    """A peer came (back), or was left out, when this was the newest view."""

    peer: PeerId
    view: int
    halt: int = 0
    """Log index of the Halt that left it out; 0: it came since."""


@record
class Branch:
    """A lineage that a Restore ended."""

    lineage: int
    rounds: tuple[int, ...]
    """By fragment: what came later in it is void."""


@record
class Held:
    """What one life of a peer holds."""

    peer: PeerId
    incarnation: int
    came: int
    """The newest view when it came: it counts in later ones only."""
    samples: Samples

    def having(self, samples: Samples) -> Held:
        return Held(self.peer, self.incarnation, self.came, samples)


@record
class Gone:
    """The same, of a peer that went away."""

    held: Held
    view: int
    """The newest one at that time: it is in no later one."""
    until: int
    """Round that has to be committed before anybody else gets it."""


@record
class Books:
    """Field by field what Ledger holds."""

    frontier: int
    free: Samples
    held: tuple[Held, ...]
    gone: tuple[Gone, ...]
    again: int


@record
class Image:
    """Field by field what Membership holds; orders matter."""

    index: int
    lineage: int
    branches: tuple[Branch, ...]
    run: Run
    restored: Restore | None
    restored_index: int
    voters: tuple[PeerId, ...]
    members: tuple[PeerInfo, ...]
    """Longest-lived first."""
    joiners: tuple[PeerInfo, ...]
    granted: tuple[Granted, ...]
    views: tuple[View, ...]
    attempts: tuple[Attempt, ...]
    commits: tuple[Commit, ...]
    seats: tuple[PeerInfo, ...]
    witnesses: tuple[PeerInfo, ...]
    forks: tuple[int, ...]
    rivals: tuple[PeerInfo, ...]
    returned: tuple[Returned, ...]
    losses: tuple[Losses, ...]
    inner_step: int
    tokens: int
    books: Books
    course: Course
    """Of a stepwise run."""
    spent: tuple[TokenSpent, ...] = ()
    forgotten: int = 0
    """Tokens that expire until then are spent no more."""
    revoked: tuple[Revoked, ...] = ()
    revoked_tokens: tuple[TokenRevoked, ...] = ()
