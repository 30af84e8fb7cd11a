"""What comes out of a core: everything the shell has to do, as plain data."""

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
from protocols.messages.admission import Admit
from protocols.messages.log_entries import Entry, LogEntry, Run
from protocols.messages.peer import Control
from protocols.messages.persisted import Snapshot
from protocols.types.frozen import record
from protocols.types.ids import Contributor, PeerId, Stamp
from protocols.types.sample_ranges import Samples

Outcome = Literal["finished", "left", "refused", "failed", "dropped"]
"""`dropped`: this peer's branch of the log was given up for another one, which it may join."""


@record
class Send:
    """Put a control message into the peer's outbox."""

    peer: PeerId
    message: Control


@record
class Persist:
    """Write this to the disk, in the order of tickets; answer Persisted once it is safe there.

    Messages that depend on it are sent by the core when the answer came, not before.
    """

    ticket: int
    term: int
    vote: str
    first: int
    """Index from which on our log is `entries`: what stood there and after it is void."""
    entries: tuple[LogEntry, ...]
    snapshot: Snapshot | None
    """New: it takes the place of every entry up to its index."""
    failures: int = 0
    """How often the core has heard of a failure: what it handed over before it heard of the last
    one builds on what is not there."""


@record
class Connect:
    """Dial until it works or the peer is gone from the log."""

    peer: PeerId
    """"" when only the address is known."""
    address: str
    via: tuple[PeerId, ...] = ()
    """Who may join us with a peer that has no address, the first choice first."""


@record
class Disconnect:
    """Close every connection with this peer and stop dialling it."""

    peer: PeerId
    why: str


@record
class CheckRun:
    """Can this node take part in this run? Answer RunAccepted, or stop with the reason."""

    run: Run


@record
class Encode:
    """Encode the waiting contribution of the ranks, once for all attempts; answer Encoded."""

    fragment: int
    round: int


@record
class SendSlice:
    """Send our encoded contribution to elements [start, stop) to the part's owner."""

    peer: PeerId
    stamp: Stamp
    part: int
    start: int
    stop: int
    contributor: Contributor


@record
class ReducePart:
    """Sum these contributions to [start, stop) in this order, encode once; answer PartReduced.

    Slices may still be arriving: what is there of all of them is summed at once. If one breaks
    off, the sum waits until it is sent again, or another attempt takes this one's place.
    """

    stamp: Stamp
    part: int
    start: int
    stop: int
    contributors: tuple[Contributor, ...]


@record
class SendResult:
    """Send a part's result, byte for byte as it is reduced: what is there, and then the rest."""

    peer: PeerId
    stamp: Stamp
    part: int
    contributors: tuple[Contributor, ...]


@record
class ApplyRound:
    """Make the outer step with this attempt's results; answer RoundApplied."""

    stamp: Stamp
    borders: tuple[int, ...]
    counted: bool
    """Our own contribution is in it."""


@record
class SkipRound:
    """A committed round of a gossip run had nothing for us: our state is after it what it was
    before; answer RoundApplied."""

    stamp: Stamp


@record
class ReleaseRound:
    """Drop results of this round and before, and contributions to it."""

    fragment: int
    round: int


@record
class DropSlices:
    """Drop what was contributed to this round and before: it is committed."""

    fragment: int
    round: int


@record
class DropResult:
    """Drop what is here of this result: whoever gave it to us does not own the part. From here on
    the owner's may come."""

    stamp: Stamp
    part: int


@record
class Discard:
    """These bytes belong to no open round (I3): drop and count them."""

    payload: SliceBegun | SliceReceived | ResultReceived | StepReceived


@record
class AdoptKept:
    """The state in our newest checkpoint is the run's again; answer KeptAdopted."""

    fragment: int
    round: int


Verdict = Literal["counted", "rebase", "anew"]


@record
class Resume:
    """What becomes of the ranks' last contribution to a fragment; let them go on if they wait.

    "counted": the outer parameters are in `round`, their work with them; what they did since they
    contributed is theirs still, as far as their method keeps it. "rebase": nobody counted it, and
    they move along with the outer parameters. "anew": they begin from these.
    """

    fragment: int
    round: int
    kind: Verdict
    first: bool
    """No round of these ranks yet: they may be asked to contribute early, whatever the run."""
    finish: bool


@record
class Leased:
    """These samples the ranks may draw from now on, and no others, the lowest first.

    Before every Resume that another set goes with.
    """

    samples: Samples


@record
class MakeStep:
    """Have the ranks make their payload of this step, from the state before it; answer StepMade.

    It is made once: the same bytes are sent again if the step is tried again in another view, and
    this peer's batch is the same there.
    """

    step: int
    batch: int
    """Which of the run's batches it is made from: nobody else gets it, unless the step is void."""


@record
class SendStep:
    """Send a payload of the stamp's step, ours or another's, byte for byte."""

    peers: tuple[PeerId, ...]
    stamp: Stamp
    whose: PeerId
    digest: str
    """Of its bytes."""


@record
class ApplyStep:
    """Complete the step with these payloads, in this order; answer StepApplied."""

    stamp: Stamp
    terms: tuple[tuple[PeerId, str], ...]
    """Of whom, and the digest of which bytes."""
    keep: bool
    """Copy the state then: it may become the base for who comes later."""
    following: MakeStep | None = None
    """The ranks may begin with it before they are asked: it is commanded next, unless something
    comes between."""


@record
class LoadBase:
    """Give the ranks the base of this step; answer BaseLoaded. What they had is void: no answer
    to an earlier MakeStep or ApplyStep follows."""

    step: int


@record
class ReleaseSteps:
    """The copy of the state after this step is the base now: drop older copies, and payloads up
    to this step."""

    step: int


@record
class Sign:
    """Is this in order? Then make the certificate, and give it to nobody; answer Signed or
    NotSigned."""

    asker: PeerId
    number: int
    admit: Admit


@record
class Answer:
    """To whoever asked for a certificate under this number, here: this one (DER), or why not."""

    number: int
    certificate: bytes
    why: str
    final: bool


@record
class GiveKey:
    """Let this voter have the authority's key."""

    peer: PeerId


@record
class TakeKey:
    """Somebody gave us the authority's key, or says so: if it is that, keep it; answer Secured."""

    key: bytes


@record
class Applied:
    """For people and files: this entry now holds here."""

    index: int
    entry: Entry
    lineage: int
    """Of the run after this entry."""
    counted: bool = False


@record
class Note:
    """For people and files: something worth saying that is no log entry."""

    kind: str
    text: str


@record
class Stop:
    """Leave the run: it is finished, we were refused, or nobody can go on."""

    why: str
    outcome: Outcome
    contact: str = ""
    """Where the leader of the other branch listens, if ours is `dropped`."""


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
"""Of states that go from donors to who joins."""
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
    | Note
    | Stop
    | Leased
    | Sign
    | Answer
    | GiveKey
    | TakeKey
)
AtTheGate = Sign | Answer | GiveKey | TakeKey
"""What a run that is not encrypted never says."""
