"""The log: entries in order, and the lineage that the newest Run or Restore opened.

Kept whole, in memory. Must NOT decide what is appended (leader.py) nor what an entry means
(membership.py).
"""

import hashlib
from collections.abc import Sequence

from protocols.entries import Entry, LogEntry, Restore, Run
from protocols.errors import LogError, RemoteProtocolError
from protocols.ids import PeerId
from protocols.wire import CONTROL_BYTES_MAX, ENTRIES_MAX, encode_entry

ENTRY_BYTES_MAX = CONTROL_BYTES_MAX - 1024
"""An entry travels in one message; the rest of that message takes less than 1 KiB."""


class Log:
    """What this peer holds of the log, from the first entry on."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.run: int = 0
        self.lineage: int = 0
        self._sizes: list[int] = []
        """Of each entry on the wire."""

    @property
    def last_index(self) -> int:
        return len(self.entries)

    def append(self, body: Entry, *, term: int = 1) -> LogEntry:
        """Add one entry of our own (the sequencer's right alone).

        Raises LogError if no message could carry it.
        """
        entry = LogEntry(index=self.last_index + 1, term=term, body=body)
        self._add(entry)
        return entry

    def accept(self, entries: Sequence[LogEntry], *, sender: PeerId) -> list[LogEntry]:
        """Take over what follows our last entry; return what was new.

        Repeated entries are skipped, a gap is ignored (the sender sends again after ReadLog), and
        an entry that contradicts one we hold is the sender's fault.
        """
        new: list[LogEntry] = []
        for entry in entries:
            if entry.index <= self.last_index:
                if entry.index < 1 or self.entries[entry.index - 1] != entry:
                    raise RemoteProtocolError(sender, f"rewrites log entry {entry.index}")
                continue
            if entry.index != self.last_index + 1:
                break
            if not self.entries and not isinstance(entry.body, Run):
                raise RemoteProtocolError(sender, "sends a log that does not start with Run")
            self._add(entry)
            new.append(entry)
        return new

    def after(self, index: int) -> list[LogEntry]:
        """The next entries for somebody who has `index`: as many as one message holds."""
        stop, size = index, 0
        while stop < min(self.last_index, index + ENTRIES_MAX):
            size += self._sizes[stop]
            if size > ENTRY_BYTES_MAX:
                break
            stop += 1
        return self.entries[index:stop]

    def _add(self, entry: LogEntry) -> None:
        encoded = encode_entry(entry)
        if len(encoded) > ENTRY_BYTES_MAX:
            what = f"entry {entry.index} of the log would take {len(encoded)} bytes"
            raise LogError(f"{what}, and at most {ENTRY_BYTES_MAX} fit into a message")
        self.entries.append(entry)
        self._sizes.append(len(encoded))
        if isinstance(entry.body, Run):
            self.run = entry.body.run
        if isinstance(entry.body, Run | Restore):
            # The parent's lineage is hashed in: two branches of a fork never share one.
            seed = self.lineage.to_bytes(8, "big") + encoded
            self.lineage = int.from_bytes(hashlib.sha256(seed).digest()[:8], "big")
