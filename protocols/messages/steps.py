"""Messages that occur in stepwise runs only (protocol.md section 5).

peer.py exports them with all others. Must NOT know what they lead to (steps/step_machine.py).
"""

from protocols.types.frozen import record
from protocols.types.ids import PeerId, Stamp, StepPayloads


@record
class Stepped:
    """To the leader: I completed this step, in the stamp's view, and my state has this digest."""

    stamp: Stamp
    state_digest: str


@record
class StepsHalted:
    """To the leader: I have stopped at this step, and hold these payloads of later steps.

    It is a promise: the sender accepts no payload of this view and completes no step until the log
    lets it go on.
    """

    stamp: Stamp
    halted: int
    """Log index of the entry that made the sender stop; reports for earlier entries are void."""
    held: tuple[StepPayloads, ...]


@record
class FetchSteps:
    """Asks for payloads of these steps that the receiver holds, byte for byte."""

    lineage: int
    first: int
    last: int
    peers: tuple[PeerId, ...]
    """Payloads of these peers are wanted; empty: of all peers."""


@record
class StepChunk:
    """Bulk: a piece of the payload of `whose` for the stamp's step, from that peer or from another
    one that keeps it.

    Pieces of one payload follow each other on one connection, from its first byte on.
    """

    stamp: Stamp
    whose: PeerId
    digest: str
    """xxh3-128 of the whole payload; it names the payload."""
    start_byte: int
    size_bytes: int
    """Bytes of the whole payload."""
