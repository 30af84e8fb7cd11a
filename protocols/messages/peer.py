"""What travels between two peers. Control messages are small; chunks carry the bulk.

Frozen, and checked field by field in wire/codec.py before anybody sees one.
"""

from protocols.messages.admission import (
    Admit,
    Admitted,
    AskKey,
    AuthorityKey,
    Decided,
    HandOn,
    NotAdmitted,
    NotRevoked,
    Revoke,
)
from protocols.messages.raft import (
    Append,
    Appended,
    HandOver,
    Install,
    OnBranch,
    ReadLog,
    Relay,
    Relayed,
    Via,
    Vote,
    Voted,
)
from protocols.messages.steps import FetchSteps, StepChunk, Stepped, Stopped
from protocols.messages.transfer import CutRoots, FetchLeaves, FetchState, Leaves, NoState
from protocols.messages.tunnels import NoTunnel, TunnelTicket, WantTunnel
from protocols.types.frozen import record
from protocols.types.ids import Contributor, PeerId, Stamp, Version
from protocols.types.sample_ranges import ALL_REMAIN, Remaining, Samples


@record
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


@record
class BulkKeys:
    """From the side that accepted: open a bulk connection, with keys made of this secret."""

    secret: bytes


@record
class WantBulk:
    """From the side that dialled: let me open another bulk connection."""


@record
class Refused:
    """The connection closes after this; `why` is a line for a person."""

    why: str
    revoked: bool = False
    """The receiver's certificate counts no more."""


@record
class Heartbeat:
    """Nothing to say, still here, and need you. Whoever does not send heartbeats itself answers
    Here."""


@record
class Seek:
    """Who leads?"""


@record
class Leads:
    """Answer to Seek: the leader listens there; "" if the sender does not know."""

    address: str


@record
class Told:
    """To the leader of a new term: I have repeated everything that I know."""

    term: int


@record
class Kept:
    """To the leader: the state of these versions is in my newest checkpoint."""

    lineage: int
    versions: tuple[Version, ...]
    inner_step: int
    tokens: int
    remaining: Remaining = ALL_REMAIN


@record
class Unlinked:
    """To the leader: members with whom I have had no connection for too long; all of them."""

    peers: tuple[PeerId, ...]


@record
class Durable:
    """To the leader: whether my disk takes what I have to promise."""

    works: bool
    why: str


@record
class Join:
    """To the leader: I know the log so far; give me a cut.

    A member that fell behind or diverged asks in the same way.
    """

    name: str
    incarnation: int
    address: str
    why: str
    against: str
    """The peer whose state was not what the log says of it; "" nobody's."""
    lineage: int = 0
    """In which the sender is, as far as it has read."""


@record
class CaughtUp:
    """To the leader: I hold the state of my cut, and who I am."""

    index: int
    """Log index of the Cut, or of the Restore whose state is in my checkpoint."""
    name: str
    incarnation: int
    address: str
    lineage: int = 0
    """In which the sender is, as far as it has read."""


@record
class Able:
    """To the leader: count on my contributions from the next round on."""

    lineage: int = 0
    """In which the sender is, as far as it has read."""


@record
class Unable:
    """To the leader: do not wait for me until I say Able again."""

    why: str
    lineage: int = 0
    """In which the sender is, as far as it has read."""


@record
class Ready:
    """To the leader: my contribution to this round is encoded and on its way."""

    stamp: Stamp
    contributor: Contributor
    samples: Samples = ()
    """What its steps saw, if the fragment is the anchor."""
    line: int = 0
    """Bytes a second that the sender's line carries; 0: it never had to know."""


@record
class Hold:
    """To the leader: I hold every part of this attempt's result, and all rounds before."""

    stamp: Stamp
    result_digest: str


@record
class Have:
    """To the leader: I applied this round and arrived at this state."""

    lineage: int
    fragment: int
    round: int
    state_digest: str


@record
class Waiting:
    """To the leader: this attempt is slow for me because of these peers."""

    stamp: Stamp
    peers: tuple[PeerId, ...]
    void: bool = False
    """From an owner: their contributions cannot be averaged, so it will never end with them."""


@record
class Fetch:
    """Send me this part of a committed result, byte for byte."""

    stamp: Stamp
    part: int


@record
class Leave:
    """To the leader: I am going."""

    why: str


@record
class Here:
    """Answer to a Heartbeat, from somebody who does not need its sender."""


@record
class Hurry:
    """From the leader, to whom no round has counted yet, or in a run that asks: others wait for
    you in this one."""

    stamp: Stamp


Reported = Ready | Hold | Have | Waiting | Kept


@record
class Report:
    """What a learner said to its relay."""

    peer: PeerId
    incarnation: int
    message: Reported


@record
class Passed:
    """From a relay to the leader: several reports, in the order in which they came."""

    term: int
    reports: tuple[Report, ...]


@record
class Wants:
    """To the leader: let me have so many samples ahead, beyond those of work that goes on from
    one round to the next because none has counted it."""

    ahead: int
    carried: int
    lineage: int = 0
    """In which the sender is, as far as it has read."""


@record
class ContributionChunk:
    """Bulk: a piece of one slice (a contribution within one part)."""

    stamp: Stamp
    part: int
    contributor: Contributor
    start: int
    """Its first element, counted from the part's."""
    elements: int
    """Of the whole part."""


@record
class ResultChunk:
    """Bulk: a piece of one part's result, with what was summed; or of one contributor's slice in
    it, if slices are gathered."""

    stamp: Stamp
    part: int
    contributors: tuple[Contributor, ...]
    """In the part's first chunk only."""
    digest: str
    """xxh3-128 of this chunk's bytes."""
    start: int
    """Its first element, counted from the part's."""
    elements: int
    """Of the whole part."""
    layer: int
    """Whose slice it is of, by the place among the contributors; 0 of a sum."""
    layers: int
    """How many lie in the result: one for each contributor, or 1 of a sum."""
    left_out: bool
    """In the part's first chunk: the receiver's own slice does not travel, since it has it."""


@record
class Padding:
    """Bulk: bytes that say nothing, and are dropped. They find out what a new connection over a
    long line carries before somebody waits for that."""


@record
class StateChunk:
    """Bulk: a cell of a fragment's state (outer parameters, then momentum) for a cut."""

    run: int
    lineage: int
    cut_index: int
    fragment: int
    round: int
    start: int
    """Its first fp32 element in the state."""
    elements: int
    """Of the whole state."""


@record
class Witnessing:
    """To the leader: the sender wants to vote, and nothing else."""

    name: str
    incarnation: int
    address: str


Control = (
    Hello
    | BulkKeys
    | WantBulk
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
    | Unlinked
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
    | FetchLeaves
    | Leaves
    | CutRoots
    | Leave
    | OnBranch
    | Witnessing
    | Hurry
    | Here
    | Relay
    | Via
    | Relayed
    | Passed
    | Wants
    | Stepped
    | Stopped
    | FetchSteps
    | Admit
    | Admitted
    | NotAdmitted
    | HandOn
    | Decided
    | AskKey
    | AuthorityKey
    | Revoke
    | NotRevoked
    | WantTunnel
    | TunnelTicket
    | NoTunnel
)
PieceChunk = ContributionChunk | ResultChunk
"""Of what is cut by its elements, in pieces that begin anywhere."""
Chunk = PieceChunk | StateChunk | StepChunk | Padding
Message = Control | Chunk
