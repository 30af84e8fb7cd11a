"""What carries the log, and who leads: messages of raft/node.py, raft/replication.py, relays and
forks.

Part of peer.py, where everybody finds them. Frozen, and checked field by field in wire/codec.py
before anybody sees one.
"""

from protocols.messages.log_entries import LogEntry
from protocols.types.frozen import record
from protocols.types.ids import PeerId


@record
class ReadLog:
    """To the leader, from somebody who is not in the log: send it to me from the beginning, and
    what follows as it comes."""

    index: int
    """What the sender has of it already."""


@record
class Vote:
    """Will you follow me? (Raft's RequestVote and pre-vote.)"""

    term: int
    """The one that the sender wants to lead."""
    last_index: int
    last_term: int
    pre: bool
    """Only asking: nobody's term or vote changes by it."""
    urgent: bool
    """The leader itself wants to go: having heard of it just now is no reason against."""


@record
class Voted:
    """Answer to Vote."""

    term: int
    """The one that was asked for, if granted; the sender's own if not."""
    granted: bool
    pre: bool


@record
class Append:
    """From the leader: what follows an entry that the receiver should have; or nothing, as a
    heartbeat."""

    run: int
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[LogEntry, ...]
    commit_index: int
    durable_index: int = 0
    """What the leader has on its own disk; 0 from whoever passes its log on."""


@record
class Appended:
    """Answer to Append and Install."""

    term: int
    matches: bool
    index: int
    """The log agrees with the leader's up to here and is on disk; if not `matches`: it may."""


@record
class Install:
    """From the leader: a piece of the snapshot that takes the place of the log so far."""

    run: int
    term: int
    index: int
    index_term: int
    offset_bytes: int
    total_bytes: int
    piece: bytes


@record
class HandOver:
    """From the leader, which wants to go: stand for election now."""

    term: int


@record
class Relay:
    """From the leader: bring these, and nobody else, what is committed after `index`, and me what
    they report."""

    term: int
    learners: tuple[PeerId, ...]
    index: int


@record
class Via:
    """From the leader: this voter brings you the log and me what you report; "": nobody does."""

    term: int
    relay: str


@record
class Relayed:
    """From a relay: the leader's log, as far as it is committed. It is not answered."""

    append: Append


@record
class OnBranch:
    """Which branch of the run's log the sender is on (protocols/peer/branches.py).

    Said to everybody who may be on another one; nothing else of the log passes between two.
    """

    forks: tuple[int, ...]
    tokens: int
    """Committed on it, as far as the sender has read."""
    leads: bool
    final: bool
    """It commits nothing more until the two branches have decided which one stays."""
    leader: str
    """Where the leader of that branch listens; "" if it has none."""


RAFT = (Vote, Voted, Append, Appended, HandOver)
"""What raft/node.py takes."""
RELAY = (Relay, Via, Relayed)
"""What links/log_relay.py takes."""
