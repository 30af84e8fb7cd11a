"""What travels between two peers. Control messages are small; chunks carry the bulk.

Frozen, and checked field by field in wire.py before anybody sees one.
"""

from dataclasses import dataclass

from protocols.entries import LogEntry
from protocols.ids import Contributor, PeerId, Stamp, Version


@dataclass(frozen=True, slots=True)
class Hello:
    """First on every control connection, both ways."""

    protocol: int
    run: int
    """0: not known yet (a joiner)."""
    peer: PeerId
    name: str
    incarnation: int
    address: str
    leader: str
    """Where the leader listens, as far as the sender knows: `address` if it leads itself."""


@dataclass(frozen=True, slots=True)
class BulkHello:
    """First on every bulk connection, from the side that dialled."""

    protocol: int
    run: int
    peer: PeerId
    incarnation: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The connection closes after this; `why` is a line for a person."""

    why: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing to say, still here; `index` is the sender's last log entry."""

    index: int


@dataclass(frozen=True, slots=True)
class ReadLog:
    """To the leader, from somebody who is not in the log: send it to me from the beginning, and
    what follows as it comes."""

    index: int
    """What the sender has of it already."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Who leads?"""


@dataclass(frozen=True, slots=True)
class Leads:
    """Answer to Seek: the leader listens there; "" if the sender does not know."""

    address: str


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Voted:
    """Answer to Vote."""

    term: int
    """The one that was asked for, if granted; the sender's own if not."""
    granted: bool
    pre: bool


@dataclass(frozen=True, slots=True)
class Append:
    """From the leader: what follows an entry that the receiver should have; or nothing, as a
    heartbeat."""

    run: int
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[LogEntry, ...]
    commit_index: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Answer to Append and Install."""

    term: int
    matches: bool
    index: int
    """The log agrees with the leader's up to here and is on disk; if not `matches`: it may."""


@dataclass(frozen=True, slots=True)
class Install:
    """From the leader: a piece of the snapshot that takes the place of the log so far."""

    run: int
    term: int
    index: int
    index_term: int
    offset_bytes: int
    total_bytes: int
    piece: bytes


@dataclass(frozen=True, slots=True)
class HandOver:
    """From the leader, which wants to go: stand for election now."""

    term: int


@dataclass(frozen=True, slots=True)
class Told:
    """To the leader of a new term: I have repeated everything that I know."""

    term: int


@dataclass(frozen=True, slots=True)
class Kept:
    """To the leader: the state of these versions is in my newest checkpoint."""

    lineage: int
    versions: tuple[Version, ...]
    inner_step: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Durable:
    """To the leader: whether my disk takes what I have to promise."""

    works: bool
    why: str


@dataclass(frozen=True, slots=True)
class Join:
    """To the leader: I know the log so far; give me a cut.

    A member that fell behind or diverged asks in the same way. Without a `why` it needs no cut: it
    has the state that the run went back to, and says only who it is.
    """

    name: str
    incarnation: int
    address: str
    why: str
    against: str
    """The peer whose state was not what the log says of it; "" nobody's."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """To the leader: I hold the state of my cut."""

    index: int
    """Log index of the Cut."""


@dataclass(frozen=True, slots=True)
class Able:
    """To the leader: count on my contributions from the next round on."""


@dataclass(frozen=True, slots=True)
class Unable:
    """To the leader: do not wait for me until I say Able again."""

    why: str


@dataclass(frozen=True, slots=True)
class Ready:
    """To everybody: my contribution to this round is encoded and on its way."""

    stamp: Stamp
    contributor: Contributor


@dataclass(frozen=True, slots=True)
class Hold:
    """To the leader: I hold every part of this attempt's result, and all rounds before."""

    stamp: Stamp
    result_digest: str


@dataclass(frozen=True, slots=True)
class Have:
    """To the leader: I applied this round and arrived at this state."""

    lineage: int
    fragment: int
    round: int
    state_digest: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """To the leader: this attempt is slow for me because of these peers."""

    stamp: Stamp
    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send me this part of a committed result, byte for byte."""

    stamp: Stamp
    part: int


@dataclass(frozen=True, slots=True)
class FetchState:
    """To the donor of my cut: I have read it and wait for the state."""

    index: int
    """Log index of the Cut."""


@dataclass(frozen=True, slots=True)
class NoState:
    """From the donor: I went on meanwhile, or never held it; ask for another cut."""

    index: int


@dataclass(frozen=True, slots=True)
class Leave:
    """To the leader: I am going."""

    why: str


@dataclass(frozen=True, slots=True)
class ContributionChunk:
    """Bulk: a piece of one slice (a contribution within one part)."""

    stamp: Stamp
    part: int
    contributor: Contributor
    offset_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ResultChunk:
    """Bulk: a piece of one part's result, with what was summed."""

    stamp: Stamp
    part: int
    contributors: tuple[Contributor, ...]
    digest: str
    """xxh3-128 of the part's bytes."""
    offset_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class StateChunk:
    """Bulk: a piece of a fragment's state (outer parameters, then momentum) for a cut."""

    run: int
    lineage: int
    cut_index: int
    fragment: int
    round: int
    offset_bytes: int
    total_bytes: int


Control = (
    Hello
    | BulkHello
    | Refused
    | Heartbeat
    | ReadLog
    | Seek
    | Leads
    | Vote
    | Voted
    | Append
    | Appended
    | Install
    | HandOver
    | Told
    | Kept
    | Durable
    | Join
    | CaughtUp
    | Able
    | Unable
    | Ready
    | Hold
    | Have
    | Waiting
    | Fetch
    | FetchState
    | NoState
    | Leave
)
Chunk = ContributionChunk | ResultChunk | StateChunk
Message = Control | Chunk
