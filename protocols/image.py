"""What the log led to, as plain data: a snapshot of Membership, which makes it and reads it."""

from dataclasses import dataclass

from protocols.course import Course
from protocols.entries import Attempt, Commit, Cut, Restore, Run, View
from protocols.ids import PeerId, PeerInfo
from protocols.samples import Samples


@dataclass(frozen=True, slots=True)
class Granted:
    """The newest cut of a receiver."""

    index: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class Losses:
    """How often a peer went away without a word."""

    peer: PeerId
    count: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A peer came (back) when this was the newest view."""

    peer: PeerId
    view: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A lineage that a Restore ended."""

    lineage: int
    rounds: tuple[int, ...]
    """By fragment: what came later in it is void."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one life of a peer holds."""

    peer: PeerId
    incarnation: int
    came: int
    """The newest view when it came: it counts in later ones only."""
    samples: Samples


@dataclass(frozen=True, slots=True)
class Gone:
    """The same, of a peer that went away."""

    held: Held
    view: int
    """The newest one at that time: it is in no later one."""
    until: int
    """Round that has to be committed before anybody else gets it."""


@dataclass(frozen=True, slots=True)
class Books:
    """Field by field what Ledger holds."""

    frontier: int
    free: Samples
    held: tuple[Held, ...]
    gone: tuple[Gone, ...]
    again: int


@dataclass(frozen=True, slots=True)
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
