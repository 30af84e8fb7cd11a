"""Commands: records of what the shell has to do, the only output of a core."""

from typing import Literal

from protocols.interface.events import ResultReceived, SliceBegun, SliceReceived, StepReceived
from protocols.interface.transfer_commands import (
    AdoptState,
    CheckState,
    CopyState,
    ExpectCells,
    ExpectState,
    HashState,
    KeepCell,
    ReleaseCopy,
    ServeCells,
)
from protocols.messages.log_entries import Entry, LogEntry, Run, TokenSpent
from protocols.messages.peer import Control
from protocols.messages.persisted import Snapshot
from protocols.types.frozen import record
from protocols.types.ids import Contributor, PartBlocks, PeerId, PeerInfo, Stamp
from protocols.types.sample_ranges import Samples

Outcome = Literal["finished", "left", "refused", "failed", "dropped"]
"""`dropped`: this peer's branch of the log was given up; the peer may join the other branch."""


@record
class Send:
    """Put a control message into the peer's outbox."""

    peer: PeerId
    message: Control


@record
class Persist:
    """Write this to the disk, in the order of commands; answer Persisted after fsync.

    The core sends messages that depend on the write only after the answer.
    """

    write_number: int
    """Counts the writes of this incarnation, from 1."""
    term: int
    vote: str
    first: int
    """Index of the first of `entries`: what the log held from there on is void."""
    entries: tuple[LogEntry, ...]
    snapshot: Snapshot | None
    """A new snapshot, which replaces all entries up to its index; None: no new one."""
    failures: int = 0
    """PersistFailed events that the core has seen. A write that was handed over before the last of
    them builds on data that is not on the disk."""


@record
class Connect:
    """Dial the peer until it is connected or removed from the log."""

    peer: PeerId
    """"" if only the address is known."""
    address: str
    via: tuple[PeerId, ...] = ()
    """Peers that may carry a tunnel to a peer without an address, the first choice first."""


@record
class Disconnect:
    """Close all connections with this peer and stop dialling it."""

    peer: PeerId
    why: str


@record
class CheckRun:
    """Check whether this node can take part in this run; answer RunAccepted, or stop with the
    reason."""

    run: Run


@record
class Encode:
    """Encode the ranks' contribution, once for all attempts at the round; answer Encoded."""

    fragment: int
    round: int


@record
class SendSlice:
    """Send elements [start, stop) of this peer's encoded contribution to the owner of the part."""

    peer: PeerId
    stamp: Stamp
    part: int
    start: int
    stop: int
    contributor: Contributor


@record
class ReducePart:
    """Sum elements [start, stop) of these contributions, in this order, and encode the sum once;
    answer PartReduced.

    Slices may still be arriving: pieces that are there of all slices are summed at once. If a slice
    breaks off, the sum waits until it is sent again, or another attempt replaces this one.
    """

    stamp: Stamp
    part: int
    start: int
    stop: int
    contributors: tuple[Contributor, ...]


@record
class SendResult:
    """Send the bytes of a part's result: the pieces that are there, then the others as they are
    made."""

    peer: PeerId
    stamp: Stamp
    part: int
    contributors: tuple[Contributor, ...]


@record
class AskBlocks:
    """Ask a contributor for its bytes of a secret sample of these parts; answer BlocksReceived. The
    sample is drawn with the first command about an attempt, and stays secret until then: all
    results are here, so no owner can make one that is right in the sample only."""

    peer: PeerId
    stamp: Stamp
    parts: tuple[int, ...]
    checkers: int
    """Number of peers that check each part: the smaller, the larger the sample."""


@record
class SendBlocks:
    """Send the bytes of these blocks to the peer: of this peer's own contribution, or of one that
    it received as the owner of the parts."""

    peer: PeerId
    stamp: Stamp
    contributor: Contributor
    sample: tuple[PartBlocks, ...]


@record
class CompareBlocks:
    """Compute the sample of these parts from the contributors' bytes, which are all here, and
    compare it with their results; answer BlocksCompared."""

    stamp: Stamp
    parts: tuple[int, ...]
    contributors: tuple[Contributor, ...]


@record
class AskCopies:
    """Ask the owner of these parts for its bytes of a contribution, in blocks with a wrong result;
    answer BlocksReceived."""

    peer: PeerId
    stamp: Stamp
    contributor: PeerId
    sample: tuple[PartBlocks, ...]


@record
class CompareCopies:
    """Compare the owner's bytes of these contributions with the contributors' own; answer
    CopiesCompared."""

    stamp: Stamp
    owner: PeerId
    contributors: tuple[PeerId, ...]


@record
class ApplyRound:
    """Make the outer step with the results of this attempt; answer RoundApplied."""

    stamp: Stamp
    borders: tuple[int, ...]
    counted: bool
    """This peer's contribution is in the result."""


@record
class SkipRound:
    """A committed round of a gossip run does not count this peer, which keeps its state; answer
    RoundApplied."""

    stamp: Stamp


@record
class ReleaseRound:
    """Free the results of this round and all earlier ones, and contributions to them."""

    fragment: int
    round: int


@record
class DropSlices:
    """Free the contributions to this round and all earlier ones: the round is committed."""

    fragment: int
    round: int


@record
class DropResult:
    """Free the bytes of this result: its sender does not own the part. The owner's result may come
    from now on."""

    stamp: Stamp
    part: int


@record
class Discard:
    """Drop and count this payload: it belongs to no open round (I3)."""

    payload: SliceBegun | SliceReceived | ResultReceived | StepReceived


@record
class AdoptKept:
    """Load the state of this peer's newest checkpoint: the run went back to it; answer
    KeptAdopted."""

    fragment: int
    round: int


Verdict = Literal["counted", "rebase", "anew"]


@record
class Resume:
    """Tell the ranks what became of their last contribution to a fragment; they go on if they wait.

    "counted": the outer parameters of `round` contain it; the inner steps since then stay in the
    ranks' parameters if the method keeps them. "rebase": it was not counted, and the ranks add what
    the outer parameters moved by. "anew": the ranks begin from the outer parameters.
    """

    fragment: int
    round: int
    kind: Verdict
    first: bool
    """These ranks have no round yet: they may be asked to contribute early in any run."""
    finish: bool


@record
class Leased:
    """The ranks may draw these samples from now on, the lowest first, and no others.

    Comes before each Resume that changes the set.
    """

    samples: Samples


@record
class MakeStep:
    """Have the ranks make their payload of this step from the state before it; answer StepMade.

    The payload is made once: if the step is tried again in another view, the same bytes are sent
    again, and this peer's batch is the same.
    """

    step: int
    batch: int
    """The number of the batch in the run; no other peer gets this batch unless the step is void."""


@record
class SendStep:
    """Send a payload of the stamp's step, of this peer or of another one, byte for byte."""

    peers: tuple[PeerId, ...]
    stamp: Stamp
    whose: PeerId
    digest: str
    """Digest of the payload's bytes."""


@record
class ApplyStep:
    """Apply the step with these payloads, in this order; answer StepApplied."""

    stamp: Stamp
    terms: tuple[tuple[PeerId, str], ...]
    """Peer and digest of each payload."""
    keep: bool
    """Copy the state after the step: it may become the base for a peer that joins later."""
    following: MakeStep | None = None
    """The step that the ranks may begin at once: its MakeStep follows unless another event comes
    first."""


@record
class LoadBase:
    """Give the ranks the copy of the state after this step; answer BaseLoaded. No answer to an
    earlier MakeStep or ApplyStep follows."""

    step: int


@record
class ReleaseSteps:
    """The copy of the state after this step is the base from now on: free older copies, and
    payloads up to this step."""

    step: int


@record
class CheckProof:
    """Check signatures, time and certificate of this admission; answer Proved or NotProved."""

    asker: PeerId
    number: int
    entry: TokenSpent
    root: str
    """The run's root key, 64 hex digits."""
    issuer_key: str
    """The key that has to have signed the token's terms; "" in a renewal."""


@record
class AdmissionAnswer:
    """Answer the request of this number: admitted, or the reason why not."""

    number: int
    certificates: tuple[bytes, ...]
    """Those of the voters (DER), if the node is admitted."""
    why: str
    """"" if it is admitted."""
    final: bool


@record
class Trust:
    """The log admits these peers: connect with each one if signatures prove its admission, also
    after a restart."""

    root: str
    admitted: tuple[TokenSpent, ...]
    """All, in the order of the log; a peer comes before those that its tokens admitted."""
    voters: tuple[PeerInfo, ...]
    """The voters, for tokens."""
    voters_issue: bool = True
    """The run takes tokens of voters."""
    operators: tuple[str, ...] = ()
    """Public keys of the operators besides the root key, for tokens."""
    ever_operators: tuple[str, ...] = ()
    """Those that there ever were: the log has checked that each one was an operator when it spent
    a token of it."""


@record
class Applied:
    """Report for event log and files: this peer has applied the entry."""

    index: int
    entry: Entry
    lineage: int
    """Lineage of the run after this entry."""
    counted: bool = False


@record
class Observation:
    """Report for event log and people: an observation that is no log entry."""

    kind: str
    text: str


@record
class Stop:
    """Leave the run: it is finished, this peer was refused or asked to leave, or no peer can go
    on."""

    why: str
    outcome: Outcome
    contact: str = ""
    """Address of the other branch's leader if the outcome is `dropped`."""


BlockCommand = AskBlocks | SendBlocks | CompareBlocks | AskCopies | CompareCopies
"""Commands about the check of results."""
TransferCommand = (
    CopyState
    | HashState
    | ServeCells
    | ReleaseCopy
    | ExpectState
    | ExpectCells
    | KeepCell
    | CheckState
    | AdoptState
)
"""Commands about the transfer of a state from donors to a joiner."""
Command = (
    Send
    | Persist
    | Connect
    | Disconnect
    | CheckRun
    | Encode
    | SendSlice
    | ReducePart
    | SendResult
    | BlockCommand
    | ApplyRound
    | SkipRound
    | ReleaseRound
    | DropResult
    | DropSlices
    | Discard
    | TransferCommand
    | AdoptKept
    | Resume
    | MakeStep
    | SendStep
    | ApplyStep
    | LoadBase
    | ReleaseSteps
    | Applied
    | Observation
    | Stop
    | Leased
    | CheckProof
    | AdmissionAnswer
    | Trust
)
AtTheGate = CheckProof | AdmissionAnswer | Trust
"""Commands that occur in encrypted runs only."""
