"""Messages of Raft (elections, replication of the log), of relays and of branches.

peer.py exports them with all others. Must NOT know what they lead to (raft/node.py).
"""

from protocols.messages.log_entries import LogEntry, Mandate
from protocols.types.frozen import record
from protocols.types.ids import PeerId


@record
class ReadLog:
    """To the leader, from a peer that is not in the log: send me the log from the beginning, and
    new entries as they come."""

    index: int
    """Index up to which the sender has the log already."""


@record
class Vote:
    """Asks for a vote (Raft's RequestVote, and its pre-vote)."""

    term: int
    """The term that the sender wants to lead."""
    last_index: int
    last_term: int
    pre: bool
    """A pre-vote: it changes neither term nor vote of any peer."""
    urgent: bool
    """The leader itself hands over: a recent heartbeat of it is no reason to refuse."""
    signature: bytes = b""
    """Of an urgent vote: the leader's, from its HandOver."""


@record
class Voted:
    """Answer to Vote."""

    term: int
    """The term of the vote if granted; otherwise the sender's own term."""
    granted: bool
    pre: bool
    signature: bytes = b""
    """Of a granted vote, not of a pre-vote: that of the voter's key (raft/mandate.py)."""


@record
class Leads:
    """From a new leader, before its first Append on a connection: the votes that elected it."""

    run: int
    term: int
    mandate: Mandate


@record
class Acknowledgement:
    """A voter's signed word that its disk holds the leader's log up to an index."""

    voter: PeerId
    index: int
    log_hash: bytes
    """Of the whole log up to `index`, 32 bytes (raft/log.py): a leader may have sent other entries
    to other peers."""
    signature: bytes
    """Of a HeldStatement of the leader's term (raft/mandate.py)."""


@record
class Append:
    """From the leader: entries after one that the receiver should have; without entries it is the
    leader's heartbeat."""

    run: int
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[LogEntry, ...]
    commit_index: int
    durable_index: int = 0
    """Index up to which the leader's own disk has the log; 0 from a relay."""
    held: tuple[Acknowledgement, ...] = ()
    """The voters' newest acknowledgements, which prove what is committed; () if the reader has them
    already, or the run is not encrypted."""


@record
class Appended:
    """Answer to Append and Install."""

    term: int
    matches: bool
    index: int
    """If `matches`: up to this index the log equals the leader's and is on disk. Otherwise: it may
    be equal up to this index."""
    held: Acknowledgement | None = None
    """If `matches`, of a voter in an encrypted run."""
    doubts: bool = False
    """What the sender has acknowledged after `index` may be no log of the leader's: send it
    again."""


@record
class Install:
    """From the leader: a piece of the snapshot that replaces the log so far."""

    run: int
    term: int
    index: int
    index_term: int
    offset_bytes: int
    total_bytes: int
    piece: bytes


@record
class HandOver:
    """From a leader that wants to leave: start an election now (leadership transfer)."""

    term: int
    signature: bytes = b""
    """That of the leader's key; the receiver shows it to the voters in its Vote."""


@record
class Relay:
    """From the leader: be the relay of exactly these learners. Bring them the log that is committed
    after `index`, and bring the leader their reports."""

    term: int
    learners: tuple[PeerId, ...]
    index: int


@record
class Via:
    """From the leader: this voter is your relay; "": you have none."""

    term: int
    relay: str


@record
class Relayed:
    """From a relay: entries of the leader's log, and the acknowledgements of a majority, so that a
    learner need not trust its relay. It is not answered."""

    append: Append


@record
class OnBranch:
    """The branch of the run's log that the sender is on (protocols/peer/branches.py).

    Sent to each peer that may be on another branch; no other message about the log passes between
    branches.
    """

    forks: tuple[int, ...]
    tokens: int
    """Tokens committed on the branch, as far as the sender has read."""
    leads: bool
    final: bool
    """The branch commits nothing more until it is decided which of the two branches stays."""
    leader: str
    """Address of the branch's leader; "" if it has none."""


RAFT = (Vote, Voted, Leads, Append, Appended, HandOver)
"""Messages that raft/node.py handles."""
RELAY = (Relay, Via, Relayed)
"""Messages that links/log_relay.py handles."""
