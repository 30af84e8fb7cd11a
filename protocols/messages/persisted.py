"""What a peer must find again after it was killed: term, vote and log (protocol.md section 1).

Plain data: the shell writes it to the disk and reads it back (peers/storage/wal.py). Must NOT
decide when.
"""

from protocols.messages.log_entries import LogEntry
from protocols.types.frozen import record


@record
class Snapshot:
    """What the log said up to an index; the entries that said it are dropped."""

    index: int
    term: int
    """Of the entry at `index`."""
    image: bytes
    """The membership that they led to (protocols/messages/snapshot.py)."""


@record
class Saved:
    """What was on the disk when this life of the peer began."""

    term: int
    vote: str
    """Whom we voted for in this term; "" nobody."""
    snapshot: Snapshot | None
    entries: tuple[LogEntry, ...]
    """After the snapshot (or from index 1), without gaps."""
