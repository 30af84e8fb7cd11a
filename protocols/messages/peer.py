"""Messages between two peers: small control messages, and chunks of bulk data.

wire/codec.py checks each field of a message before any other code reads it.
"""

from protocols.messages.admission import (
    ActRefused,
    Admit,
    Admitted,
    Decided,
    HandOn,
    NotAdmitted,
    RequestAct,
)
from protocols.messages.blocks import Blocks, BlocksWanted, WrongResult
from protocols.messages.raft import (
    Append,
    Appended,
    HandOver,
    Install,
    Leads,
    OnBranch,
    ReadLog,
    Relay,
    Relayed,
    Via,
    Vote,
    Voted,
)
from protocols.messages.steps import FetchSteps, StepChunk, Stepped, StepsHalted
from protocols.messages.transfer import CutRoots, FetchLeaves, FetchState, Leaves, NoState
from protocols.messages.tunnels import NoTunnel, TunnelTicket, WantTunnel
from protocols.types.frozen import record
from protocols.types.ids import Contributor, PeerId, Stamp, Version
from protocols.types.sample_ranges import ALL_REMAIN, Remaining, Samples


@record
class Hello:
    """The first message on every control connection, in both directions."""

    protocol: int
    run: int
    """Number of the run; 0 from a joiner that does not know it yet."""
    peer: PeerId
    name: str
    incarnation: int
    address: str
    leader: str
    """Address of the leader as far as the sender knows; its own `address` if it leads."""


@record
class Disconnecting:
    """The last message on a control connection: the sender closes it, lives on, and may connect
    again. The connection of a process that ends is closed without it."""

    why: str


@record
class BulkKeys:
    """From the side that accepted: open a bulk connection, with keys derived from this secret."""

    secret: bytes


@record
class WantBulk:
    """From the side that dialled: I want to open another bulk connection; send me BulkKeys."""


@record
class Refused:
    """The sender closes the connection after this message; `why` is one line for a person."""

    why: str
    revoked: bool = False
    """The receiver's certificate was revoked."""


@record
class Heartbeat:
    """The sender lives, and watches whether the receiver does. A receiver that sends no heartbeats
    itself answers HeartbeatReply."""


@record
class FindLeader:
    """Asks for the leader's address; the answer is LeaderAddress."""


@record
class LeaderAddress:
    """Answer to FindLeader: the address of the leader; "" if the sender does not know it."""

    address: str


@record
class ReportsComplete:
    """To the leader of a new term: I have repeated all of my reports."""

    term: int


@record
class Kept:
    """To the leader: my newest checkpoint holds the state of these versions."""

    lineage: int
    versions: tuple[Version, ...]
    inner_step: int
    tokens: int
    remaining: Remaining = ALL_REMAIN


@record
class UnreachedMembers:
    """To the leader: all members with which I have had no connection for an election timeout."""

    peers: tuple[PeerId, ...]


@record
class Durable:
    """To the leader: whether my disk accepts writes."""

    works: bool
    why: str


@record
class Join:
    """To the leader: I have read the log and need a state; give me a cut.

    A member with a state that is behind, or differs, asks in the same way.
    """

    name: str
    incarnation: int
    address: str
    why: str
    against: str
    """The donor that sent another state than the log names; "" if none did."""
    lineage: int = 0
    """The sender's lineage, as far as it has read the log."""


@record
class CaughtUp:
    """To the leader: I hold the state of my cut; the other fields describe the sender."""

    index: int
    """Log index of the Cut, or of the Restore to the state in the sender's checkpoint."""
    name: str
    incarnation: int
    address: str
    lineage: int = 0
    """The sender's lineage, as far as it has read the log."""
    state: str = ""
    """The state that the sender has, as in the Member entry."""


@record
class ReadyToTrain:
    """To the leader: I can contribute from the next round on."""

    lineage: int = 0
    """The sender's lineage, as far as it has read the log."""


@record
class NotReadyToTrain:
    """To the leader: I cannot contribute until I send ReadyToTrain again."""

    why: str
    lineage: int = 0
    """The sender's lineage, as far as it has read the log."""


@record
class ContributionOffered:
    """To the leader: my contribution to this round is named and on its way."""

    stamp: Stamp
    contributor: Contributor
    samples: Samples = ()
    """Samples of its inner steps, if the fragment is the anchor."""
    line: int = 0
    """Bytes a second that the sender's line carries, as measured; 0: it was never full."""


@record
class Hold:
    """To the leader: I hold all parts of this attempt's result, and all earlier rounds."""

    stamp: Stamp
    result_digest: str


@record
class Have:
    """To the leader: I applied this round and my state has this digest."""

    lineage: int
    fragment: int
    round: int
    state_digest: str


@record
class WaitsForPeers:
    """To the leader: I wait for these peers in this attempt."""

    stamp: Stamp
    peers: tuple[PeerId, ...]
    void: bool = False
    """From an owner of a part: contributions of these peers cannot be averaged, so the attempt
    cannot end with them."""


@record
class Fetch:
    """Asks for this part of a committed result, byte for byte."""

    stamp: Stamp
    part: int


@record
class Leave:
    """To the leader: I leave the run."""

    why: str


@record
class HeartbeatReply:
    """Answer to a Heartbeat, from a peer that does not watch the sender."""


@record
class ContributeNow:
    """From the leader: other peers wait for your contribution to this round. Sent to a peer that no
    round has counted yet, and to any straggler of a run with `Run.asks`."""

    stamp: Stamp


Reported = ContributionOffered | Hold | Have | WaitsForPeers | WrongResult | Kept


@record
class Report:
    """A learner's report, as its relay passes it on."""

    peer: PeerId
    incarnation: int
    message: Reported


@record
class PassedReports:
    """From a relay to the leader: reports in the order in which they arrived."""

    term: int
    reports: tuple[Report, ...]


@record
class WantSamples:
    """To the leader: lease me samples so that I hold `ahead`, not counting the `carried` ones of
    work that no round has counted yet."""

    ahead: int
    carried: int
    lineage: int = 0
    """The sender's lineage, as far as it has read the log."""


@record
class ContributionChunk:
    """Bulk: a piece of one slice (a contribution's elements in one part)."""

    stamp: Stamp
    part: int
    contributor: Contributor
    start: int
    """The piece's first element, counted from the first of the part."""
    elements: int
    """Elements of the whole part."""


@record
class ResultChunk:
    """Bulk: a piece of one part's result. In a gather it is a piece of one contributor's slice in
    the result."""

    stamp: Stamp
    part: int
    contributors: tuple[Contributor, ...]
    """The contributions in the result; in the part's first chunk only."""
    digest: str
    """xxh3-128 of this chunk's bytes."""
    start: int
    """The piece's first element, counted from the first of the part."""
    elements: int
    """Elements of the whole part."""
    layer: int
    """Index of the slice's contributor in a gather; 0 of a sum."""
    layers: int
    """Number of slices in the result: that of the contributors in a gather, 1 of a sum."""
    left_out: bool
    """In the part's first chunk: the receiver's own slice is not sent, since the receiver has
    it."""


@record
class Padding:
    """Bulk: bytes without a meaning, which are dropped. They let congestion control find out what a
    new connection over a long line carries before payload waits for it."""


@record
class StateChunk:
    """Bulk: a cell of a fragment's state (outer parameters, then momentum) for a cut."""

    run: int
    lineage: int
    cut_index: int
    fragment: int
    round: int
    start: int
    """The cell's first fp32 element in the state."""
    elements: int
    """Elements of the whole state."""


@record
class Witnessing:
    """To the leader: the sender is a witness: it wants to vote and to do nothing else."""

    name: str
    incarnation: int
    address: str


Control = (
    Hello
    | BulkKeys
    | WantBulk
    | Refused
    | Disconnecting
    | Heartbeat
    | ReadLog
    | FindLeader
    | LeaderAddress
    | Vote
    | Voted
    | Leads
    | Append
    | Appended
    | Install
    | HandOver
    | ReportsComplete
    | Kept
    | UnreachedMembers
    | Durable
    | Join
    | CaughtUp
    | ReadyToTrain
    | NotReadyToTrain
    | ContributionOffered
    | Hold
    | Have
    | WaitsForPeers
    | BlocksWanted
    | Blocks
    | WrongResult
    | Fetch
    | FetchState
    | NoState
    | FetchLeaves
    | Leaves
    | CutRoots
    | Leave
    | OnBranch
    | Witnessing
    | ContributeNow
    | HeartbeatReply
    | Relay
    | Via
    | Relayed
    | PassedReports
    | WantSamples
    | Stepped
    | StepsHalted
    | FetchSteps
    | Admit
    | Admitted
    | NotAdmitted
    | HandOn
    | Decided
    | RequestAct
    | ActRefused
    | WantTunnel
    | TunnelTicket
    | NoTunnel
)
PieceChunk = ContributionChunk | ResultChunk
"""Chunks of payloads that are cut into pieces by elements."""
Chunk = PieceChunk | StateChunk | StepChunk | Padding
Message = Control | Chunk
