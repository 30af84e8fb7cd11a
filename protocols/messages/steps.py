"""What travels between peers of a stepwise run alone (protocol.md section 5).

A part of peer.py, which everybody imports. Must NOT know what they lead to (steps/step_machine.py).
"""

from protocols.types.frozen import record
from protocols.types.ids import PeerId, Stamp, StepPayloads


@record
class Stepped:
    """To the leader: I completed this step (its view is in the stamp) and arrived at this state."""

    stamp: Stamp
    state_digest: str


@record
class Stopped:
    """To the leader: I stand at this step, and hold these payloads beyond it.

    A promise: I take no payload of this view and complete no step until the log lets me go on.
    """

    stamp: Stamp
    halted: int
    """Log index of what made me stop: an earlier report is void."""
    held: tuple[StepPayloads, ...]


@record
class FetchSteps:
    """Send me what you hold of these steps' payloads, byte for byte."""

    lineage: int
    first: int
    last: int
    peers: tuple[PeerId, ...]
    """Whose; none named: everybody's."""


@record
class StepChunk:
    """Bulk: a piece of the payload of `whose` for the stamp's step, from itself or who keeps it.

    Pieces of one payload follow each other on one connection, from its first byte on.
    """

    stamp: Stamp
    whose: PeerId
    digest: str
    """xxh3-128 of the whole payload's bytes: its name."""
    start_byte: int
    size_bytes: int
    """Of the whole payload."""
