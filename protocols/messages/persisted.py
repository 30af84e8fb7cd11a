"""Records that survive a crash of a peer: term, vote and log (protocol.md section 1).

The shell writes them to the disk and reads them back (peers/storage/wal.py). Must NOT decide when.
"""

from protocols.messages.log_entries import LogEntry
from protocols.types.frozen import record


@record
class Snapshot:
    """The state that the log led to at an index; it replaces the entries up to there."""

    index: int
    term: int
    """Term of the entry at `index`."""
    image: bytes
    """The encoded RunStateSnapshot (protocols/messages/snapshot.py)."""


@record
class Saved:
    """The content of the disk when this incarnation of the peer began."""

    term: int
    vote: str
    """The candidate that this peer voted for in this term; "" if none."""
    snapshot: Snapshot | None
    entries: tuple[LogEntry, ...]
    """Entries after the snapshot (or from index 1), without gaps."""
