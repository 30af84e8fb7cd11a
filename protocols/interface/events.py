"""Events: records of what happened, the only input of a core beside the time."""

from typing import TypeGuard

from protocols.messages.admission import Admit
from protocols.messages.log_entries import Act, Run, TokenSpent
from protocols.messages.peer import Append, Control, Heartbeat, HeartbeatReply, Kept
from protocols.types.frozen import record
from protocols.types.ids import Contributor, PartBlocks, PeerId, Stamp
from protocols.types.rules import ProtocolConfig
from protocols.types.sample_ranges import Samples


@record
class Bootstrap:
    """This peer founds the run and is its only member at first."""

    run: Run
    state_digests: tuple[str, ...]
    """Digests of the initial state, one for each fragment."""
    admission: TokenSpent | None = None
    """Of an encrypted run: this peer's own admission."""


@record
class RunAccepted:
    """The shell has checked the agreed run: this node can take part in it."""

    rules: ProtocolConfig
    samples_ahead: int = 0
    """Samples that the ranks want to hold ahead; 0: samples are not accounted for."""


@record
class PeerConnected:
    """Both peers have sent their hello on a control connection."""

    peer: PeerId
    incarnation: int
    address: str
    leader: str
    """Address of the leader as far as that peer knows; its own if it leads."""


@record
class PeerDisconnected:
    """The control connection ended, or could not be opened."""

    peer: PeerId
    why: str
    lives: bool = False
    """The peer said before that it closes the connection: its process has not ended."""


@record
class BytesReceived:
    """Bytes of a message arrived that is not complete, or that only the shell reads: a sign of
    life."""

    peer: PeerId


@record
class MessageReceived:
    """A control message arrived; each of its fields has been checked."""

    peer: PeerId
    message: Control


@record
class Persisted:
    """All writes up to this number are on the disk (after fsync)."""

    write_number: int


@record
class PersistFailed:
    """The disk refused this write, and will refuse every write that was handed over after it."""

    write_number: int
    why: str


@record
class Checkpointed:
    """A newer checkpoint is complete on this peer's disk."""

    kept: Kept


@record
class KeptAdopted:
    """Answer to AdoptKept. The digest is "" if the checkpoint could not be read."""

    fragment: int
    round: int
    state_digest: str


@record
class SliceBegun:
    """A slice of another peer's contribution begins to arrive: its first pieces can be summed.

    SliceReceived follows, after the slice was sent again if the connection ends before. The shell
    may leave this event out.
    """

    sender: PeerId
    stamp: Stamp
    part: int
    contributor: Contributor


@record
class SliceReceived:
    """All chunks of one slice of another peer's contribution have arrived."""

    sender: PeerId
    stamp: Stamp
    part: int
    contributor: Contributor

    @property
    def begun(self) -> SliceBegun:
        """The SliceBegun that came before it."""
        return SliceBegun(self.sender, self.stamp, self.part, self.contributor)


@record
class ResultReceived:
    """All chunks of one part's result have arrived."""

    sender: PeerId
    stamp: Stamp
    part: int
    contributors: tuple[Contributor, ...]
    digest: str


@record
class StateCopied:
    """Answer to CopyState: the number of cells of the copy, or 0 if the state had changed by
    then."""

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
    """Digests of the copy's cells, 32 bytes each, in order."""


@record
class CellReceived:
    """A whole cell of a cut's state has arrived; `digest` is the digest of its bytes."""

    sender: PeerId
    cut_index: int
    fragment: int
    cell: int
    digest: bytes


@record
class StateReceived:
    """Answer to CheckState; `state_digest` is the digest of the state that arrived."""

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
    """The ranks have ended or hang; the shell starts them again."""

    why: str


@record
class TrainersStalled:
    """The ranks make no step, though they have to: no other peer should wait for them.
    TrainersMoving or TrainersLost follows."""

    why: str


@record
class TrainersMoving:
    """The ranks that had stalled make steps again."""


@record
class ContributionReady:
    """The ranks have written their parameters and wait for a result."""

    fragment: int
    tokens: int
    steps: int
    samples: Samples = ()
    """Samples of the inner steps since their last contribution; of the anchor fragment only."""
    round: int | None = None
    """The round for which the ranks were told to contribute to this fragment; None: the next
    one."""
    line: int = 0
    """Bytes a second that this peer's line carries, as measured; 0: it was never full."""


@record
class Encoded:
    """Answer to Encode."""

    fragment: int
    round: int
    manifest: str


@record
class PartReduced:
    """Answer to ReducePart: all slices have arrived and are summed."""

    stamp: Stamp
    part: int
    digest: str
    void: tuple[PeerId, ...] = ()
    """Peers with slices that cannot be averaged: if there are any, there is no sum and no
    digest."""


@record
class BlocksReceived:
    """`sender` has answered AskBlocks (about its own contribution) or AskCopies; the bytes have the
    right size."""

    sender: PeerId
    stamp: Stamp
    contributor: PeerId


@record
class WrongPart:
    """A result that differs from the one computed from the contributors' own blocks."""

    blocks: PartBlocks
    """Some of the differing blocks."""
    peers: tuple[PeerId, ...] = ()
    """Contributors with other bytes in the result than of their own, if the run gathers."""


@record
class BlocksCompared:
    """Answer to CompareBlocks."""

    stamp: Stamp
    wrong: tuple[WrongPart, ...]


@record
class CopiesCompared:
    """Answer to CompareCopies."""

    stamp: Stamp
    owner: PeerId
    differing: tuple[PeerId, ...]
    """Contributors with other bytes at this owner than of their own."""


@record
class RoundApplied:
    """Answer to ApplyRound."""

    stamp: Stamp
    state_digest: str


@record
class StepReceived:
    """The payload of `peer` for a step arrived, from that peer or from another one that kept it."""

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
    """Answer to LoadBase: the digest of the ranks' state."""

    step: int
    state_digest: str


@record
class Secured:
    """This peer has a certificate, so the run is encrypted."""


@record
class AdmitAsked:
    """A node without a certificate asks for admission."""

    number: int
    """The shell's number of the request, until Answer."""
    admit: Admit


@record
class Proved:
    """Answer to CheckProof: signatures, time and certificate are valid; the log decides about the
    uses."""

    asker: PeerId
    number: int
    entry: TokenSpent


@record
class NotProved:
    """Answer to CheckProof: the request is refused, and why; `final` if asking again is
    pointless."""

    asker: PeerId
    number: int
    why: str
    final: bool


@record
class ActAsked:
    """A person revokes a certificate or a token, or issues a token, at this peer, which is
    `entry.by`."""

    entry: Act
    force: bool = False
    """Revoke even if no majority of the remaining voters can be reached (leader/voters.py)."""


@record
class Barred:
    """A peer answers this peer's hello with the message that its certificate was revoked."""

    peer: PeerId
    why: str


@record
class ContactRefused:
    """An address that a person gave refuses this peer, or no peer answers there."""

    why: str


@record
class LeaveRequested:
    """A person, or a signal, asks this peer to leave the run."""

    why: str


@record
class DeadlineReached:
    """The core's deadline passed without another event."""


def is_pulse(event: "Event") -> TypeGuard[MessageReceived]:
    """Is this message only a sign of life? The leader's is an Append without entries."""
    if not isinstance(event, MessageReceived):
        return False
    message = event.message
    return isinstance(message, Heartbeat | HeartbeatReply) or (
        isinstance(message, Append) and not message.entries
    )


GateEvent = Secured | AdmitAsked | Proved | NotProved | ActAsked | Barred
"""Events about certificates (peer/certificates.py)."""
Event = (
    Bootstrap
    | RunAccepted
    | PeerConnected
    | PeerDisconnected
    | MessageReceived
    | BytesReceived
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
    | TrainersStalled
    | TrainersMoving
    | ContributionReady
    | Encoded
    | PartReduced
    | BlocksReceived
    | BlocksCompared
    | CopiesCompared
    | RoundApplied
    | StepReceived
    | StepMade
    | StepApplied
    | BaseLoaded
    | GateEvent
    | ContactRefused
    | LeaveRequested
    | DeadlineReached
)
