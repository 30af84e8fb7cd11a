"""What goes into a core: everything that happened, as plain data."""

from typing import TypeGuard

from protocols.messages.admission import Admit
from protocols.messages.log_entries import Revocation, Run, TokenSpent
from protocols.messages.peer import Append, Control, Heartbeat, Here, Kept
from protocols.types.frozen import record
from protocols.types.ids import Contributor, PeerId, Stamp
from protocols.types.rules import ProtocolConfig
from protocols.types.sample_ranges import Samples


@record
class Bootstrap:
    """We start the run: for a moment we are its only member."""

    run: Run
    state_digests: tuple[str, ...]
    """Of the initial state, one per fragment."""


@record
class RunAccepted:
    """Our shell looked at the agreed run and can take part in it."""

    rules: ProtocolConfig
    samples_ahead: int = 0
    """How many samples our ranks want to have ahead; 0: nobody accounts for what they train."""


@record
class PeerConnected:
    """Both hellos were exchanged on a control connection."""

    peer: PeerId
    incarnation: int
    address: str
    leader: str
    """Address at which that peer believes the leader listens; its own when it leads."""


@record
class PeerDisconnected:
    """The control connection ended, or could not be made."""

    peer: PeerId
    why: str


@record
class MessageReceived:
    """A control message, already checked field by field."""

    peer: PeerId
    message: Control


@record
class Persisted:
    """Everything up to this ticket is safe on the disk."""

    ticket: int


@record
class PersistFailed:
    """The disk did not take this ticket, nor will it take what was handed over after it."""

    ticket: int
    why: str


@record
class Checkpointed:
    """A newer checkpoint is complete on our disk."""

    kept: Kept


@record
class KeptAdopted:
    """Answer to AdoptKept: "" as a digest if the checkpoint could not be read."""

    fragment: int
    round: int
    state_digest: str


@record
class SliceBegun:
    """A slice of somebody's contribution has begun to arrive: what is here can be summed already.

    SliceReceived follows; if the connection ends before, once it was sent again. May be left out.
    """

    sender: PeerId
    stamp: Stamp
    part: int
    contributor: Contributor


@record
class SliceReceived:
    """All chunks of one slice of somebody's contribution are here."""

    sender: PeerId
    stamp: Stamp
    part: int
    contributor: Contributor

    @property
    def begun(self) -> SliceBegun:
        """What came before it."""
        return SliceBegun(self.sender, self.stamp, self.part, self.contributor)


@record
class ResultReceived:
    """All chunks of one part's result are here."""

    sender: PeerId
    stamp: Stamp
    part: int
    contributors: tuple[Contributor, ...]
    digest: str


@record
class StateCopied:
    """Answer to CopyState: how many cells the copy has, 0 if the state was another one by then."""

    cut_index: int
    fragment: int
    cells: int


@record
class StateHashed:
    """Answer to HashState."""

    cut_index: int
    fragment: int
    state_digest: str
    leaves: bytes
    """The digest of each cell of the copy, 32 bytes, one after the other."""


@record
class CellReceived:
    """A cell of a state for a cut is here, whole; `digest` is that of its bytes."""

    sender: PeerId
    cut_index: int
    fragment: int
    cell: int
    digest: bytes


@record
class StateReceived:
    """Answer to CheckState; `state_digest` is of the cells that are here."""

    cut_index: int
    fragment: int
    round: int
    state_digest: str


@record
class TrainersReady:
    """The ranks are attached and wait for their first parameters."""


@record
class TrainersAble:
    """The ranks have made enough steps to contribute to the next round."""


@record
class TrainersLost:
    """The ranks are gone; they will be started again."""

    why: str


@record
class ContributionReady:
    """The ranks wrote their parameters and wait for a result."""

    fragment: int
    tokens: int
    steps: int
    samples: Samples = ()
    """What their steps saw since they contributed last (of the anchor fragment)."""
    round: int | None = None
    """What `next_round` was when they were told to contribute to this fragment; None: just now."""
    line: int = 0
    """Bytes a second that our line carries, as far as we know; 0: more than we ever had to send."""


@record
class Encoded:
    """Answer to Encode."""

    fragment: int
    round: int
    manifest: str


@record
class PartReduced:
    """Answer to ReducePart, once all slices are here and summed."""

    stamp: Stamp
    part: int
    digest: str
    void: tuple[PeerId, ...] = ()
    """Whose slices cannot be averaged: then there is no sum, and no digest."""


@record
class RoundApplied:
    """Answer to ApplyRound."""

    stamp: Stamp
    state_digest: str


@record
class StepReceived:
    """The payload of `peer` for a step is here, from itself or from who kept it."""

    sender: PeerId
    stamp: Stamp
    peer: PeerId
    digest: str


@record
class StepMade:
    """Answer to MakeStep."""

    step: int
    batch: int
    digest: str


@record
class StepApplied:
    """Answer to ApplyStep."""

    stamp: Stamp
    state_digest: str


@record
class BaseLoaded:
    """Answer to LoadBase: the digest of what the ranks have now."""

    step: int
    state_digest: str


@record
class Secured:
    """This peer has a certificate: the run is encrypted."""

    has_key: bool
    """Of the authority: it can sign others'. Again when it gets it."""


@record
class AdmitAsked:
    """Somebody without a certificate asks to be let in."""

    number: int
    """The shell's name for it, until Answer."""
    admit: Admit


@record
class Signed:
    """Answer to Sign: what was asked for is in order, as far as a log does not know better."""

    asker: PeerId
    number: int
    entry: TokenSpent
    certificate: bytes
    earlier: PeerId = PeerId("")
    """Whose certificate stood for a token; "" nobody's."""


@record
class NotSigned:
    """The other answer."""

    asker: PeerId
    number: int
    why: str
    final: bool


@record
class RevokeAsked:
    """A person wants a certificate, or a token, to count no more; `by` in it is this peer."""

    entry: Revocation
    force: bool = False
    """Also if no majority of the voters that remain can be reached (leader/voters.py)."""


@record
class Barred:
    """A peer says, in its answer to our hello, that our certificate was revoked."""

    peer: PeerId
    why: str


@record
class LeaveRequested:
    """Somebody asked this peer to go."""

    why: str


@record
class DeadlineReached:
    """Nothing happened until the core's deadline."""


def is_pulse(event: "Event") -> TypeGuard[MessageReceived]:
    """Said only so that a peer hears it; the leader's is an Append without entries."""
    if not isinstance(event, MessageReceived):
        return False
    message = event.message
    return isinstance(message, Heartbeat | Here) or (
        isinstance(message, Append) and not message.entries
    )


GateEvent = Secured | AdmitAsked | Signed | NotSigned | RevokeAsked | Barred
"""Of who may take part (peer/certificates.py)."""
Event = (
    Bootstrap
    | RunAccepted
    | PeerConnected
    | PeerDisconnected
    | MessageReceived
    | Persisted
    | PersistFailed
    | Checkpointed
    | KeptAdopted
    | SliceBegun
    | SliceReceived
    | ResultReceived
    | StateCopied
    | StateHashed
    | CellReceived
    | StateReceived
    | TrainersReady
    | TrainersAble
    | TrainersLost
    | ContributionReady
    | Encoded
    | PartReduced
    | RoundApplied
    | StepReceived
    | StepMade
    | StepApplied
    | BaseLoaded
    | GateEvent
    | LeaveRequested
    | DeadlineReached
)
