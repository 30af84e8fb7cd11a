"""A disk that takes everything at once, for the tests of protocols/. Must NOT judge anything."""

from dataclasses import dataclass

from protocols.interface.commands import Persist
from protocols.messages.persisted import Saved


@dataclass(slots=True)
class Disk:
    """What a peer finds again in its next life."""

    saved: Saved | None = None

    def holds(self, index: int, term: int | None) -> bool:
        """Is the entry with this index and term here, or covered by the snapshot?"""
        saved = self.saved
        base = saved.snapshot.index if saved is not None and saved.snapshot is not None else 0
        if index <= base:
            return True
        entries = saved.entries if saved is not None else ()
        return index <= base + len(entries) and entries[index - base - 1].term == term

    def write(self, persist: Persist) -> None:
        """As Persist says: what stood from `first` on is void, and so is what a snapshot covers."""
        old = self.saved
        snapshot = persist.snapshot or (old.snapshot if old else None)
        base = snapshot.index if snapshot else 0
        stood = old.entries if old else ()
        before = [x for x in stood if base < x.index < persist.first]
        entries = (*before, *(x for x in persist.entries if x.index > base))
        places = list(range(base + 1, base + 1 + len(entries)))
        assert [entry.index for entry in entries] == places, "the log on the disk has a gap"
        self.saved = Saved(persist.term, persist.vote, snapshot, entries)
