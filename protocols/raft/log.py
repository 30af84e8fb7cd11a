"""The log on this peer: entries in order, committed or not, and who votes on the next one.

Entries up to `base` are gone: a snapshot says what they led to. Must NOT decide what is appended
(leader/decisions.py), what is committed (node.py) nor what an entry means (state/run_state.py).
"""

from collections.abc import Sequence, Set

from protocols.messages.log_entries import Entry, Left, LogEntry, Lost, Restore, Run, Voter
from protocols.messages.peer import Append
from protocols.types.errors import LogError, RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.types.limits import ENTRIES_MAX, ENTRY_BYTES_MAX
from protocols.wire.codec import encode_entry, readable_bytes

Voters = tuple[PeerId, ...]
"""Whose acknowledgements commit an entry: the longest-lived members, oldest first."""


def voters_after(voters: Voters, body: Entry) -> Voters:
    """Raft's configuration after an entry: it holds from the moment the entry is appended."""
    match body:
        case Run(founder=founder):
            return (founder,)
        case Restore(voters=chosen) if chosen:
            return chosen  # A fork: the others are gone, or may go on in a branch of their own.
        case Voter(peer=peer, votes=True) if peer not in voters:
            return (*voters, peer)
        case Voter(peer=peer, votes=False) | Left(peer=peer) | Lost(peer=peer):
            return tuple(voter for voter in voters if voter != peer)
        case _:
            return voters


def size_bytes(entry: LogEntry) -> int:
    """Raises LogError if no message could carry it."""
    size = len(encode_entry(entry))
    if size > ENTRY_BYTES_MAX:
        what = f"entry {entry.index} of the log would take {size} bytes"
        raise LogError(f"{what}, and at most {ENTRY_BYTES_MAX} fit into a message")
    return size


class Log:
    """What this peer holds of the log, after the snapshot."""

    def __init__(self) -> None:
        self.base = 0
        """Index of the last entry that the snapshot covers; 0: none."""
        self.base_term = 0
        self.entries: list[LogEntry] = []
        self._sizes: list[int] = []
        """Of each entry on the wire."""
        self._voters: list[Voters] = [()]
        """At the base, then after each entry."""
        self.reconfigured = 0
        """Index of the last entry that changed the voters, as far as we hold it."""
        self._forked = 0
        """And of the last one that opened a fork."""

    @property
    def last_index(self) -> int:
        return self.base + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base_term

    @property
    def voters(self) -> Voters:
        return self._voters[-1]

    def forks_after(self, index: int) -> tuple[int, ...]:
        """Names of the forks that entries after `index` open."""
        if index >= self._forked:
            return ()  # As nearly always, and after each event somebody asks.
        later = (entry.body for entry in self.since(index + 1))
        return tuple(body.fork for body in later if isinstance(body, Restore) and body.fork)

    def voted_since(self, peer: PeerId, index: int) -> bool:
        """The peer votes, or did after an entry from `index` on: what took its vote away may never
        be committed (Ongaro's thesis 4.2.2)."""
        return any(peer in voters for voters in self._voters[index - self.base :])

    def is_majority(self, peers: Set[PeerId], *, without: PeerId | None = None) -> bool:
        """More than half of the voters (but for this one) are among these."""
        voters = set(self.voters) - {without}
        return 2 * len(peers & voters) > len(voters)

    def term_at(self, index: int) -> int | None:
        """None: we do not hold that entry any more, or not yet."""
        if index == self.base:
            return self.base_term
        place = index - self.base - 1
        return self.entries[place].term if 0 <= place < len(self.entries) else None

    def before_conflict(self, index: int, *, floor: int) -> int:
        """Our entry at `index` is not the leader's: where it may agree, not below what is
        committed. All of a wrong term are skipped at once."""
        last = min(index, self.last_index)
        wrong = self.term_at(last) if last == index else None
        while wrong is not None and last > floor and self.term_at(last) == wrong:
            last -= 1
        return max(last, floor)

    def append(self, body: Entry, *, term: int) -> LogEntry:
        """Add one entry of our own (the leader's right alone).

        Raises LogError if no peer could read it: then nothing has changed.
        """
        entry = LogEntry(index=self.last_index + 1, term=term, body=body)
        self._add(entry, readable_bytes(entry))
        return entry

    def add(self, entry: LogEntry) -> None:
        """Add an entry at its place, which is the next: it has come as bytes, and was read. Raises
        LogError if no message could carry it."""
        self._add(entry, size_bytes(entry))

    def _add(self, entry: LogEntry, size: int) -> None:
        assert entry.index == self.last_index + 1, "the log has no gaps"
        voters = voters_after(self.voters, entry.body)
        if voters != self.voters:
            self.reconfigured = entry.index
        if _opens_fork(entry):
            self._forked = entry.index
        self.entries.append(entry)
        self._sizes.append(size)
        self._voters.append(voters)

    def cut_off(self, index: int) -> None:
        """Forget the entries from `index` on: a newer leader has others there."""
        keep = index - self.base - 1
        assert keep >= 0, "what a snapshot covers is committed"
        del self.entries[keep:], self._sizes[keep:], self._voters[keep + 1 :]
        self.reconfigured = next(
            (
                entry.index
                for entry, before, after in zip(
                    reversed(self.entries),
                    reversed(self._voters[:-1]),
                    reversed(self._voters[1:]),
                    strict=True,
                )
                if before != after
            ),
            0,
        )
        forks = (entry.index for entry in reversed(self.entries) if _opens_fork(entry))
        self._forked = next(forks, 0)

    def merge(
        self, entries: Sequence[LogEntry], sender: PeerId, header: Append, *, floor: int
    ) -> int | None:
        """Take over what the leader has after an entry that we share; return the first index that
        changed. What is committed (up to `floor`) never does: RemoteProtocolError.

        The entries have come as bytes, and were read. Raises LogError as `add`; whatever it raises,
        nothing has changed.
        """
        for index, entry in enumerate(entries, start=header.previous_index + 1):
            if entry.index != index or not 0 < entry.term <= header.term:
                raise RemoteProtocolError(sender, f"sends entry {entry.index} instead of {index}")
        new = [entry for entry in entries if entry.index > self.base]
        while new and self.term_at(new[0].index) == new[0].term:
            del new[0]
        # Before anything changes: what an exception leaves behind, nobody writes to the disk.
        sizes = [size_bytes(entry) for entry in new]
        if not new:
            return None
        first = new[0].index
        if first <= self.last_index:
            if first <= floor:
                raise RemoteProtocolError(sender, f"rewrites log entry {first}")
            self.cut_off(first)
        for entry, size in zip(new, sizes, strict=True):
            self._add(entry, size)
        return first

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`, which is committed: a snapshot has them."""
        gone = index - self.base
        assert 0 <= gone <= len(self.entries)
        if gone:
            self.base_term = self.entries[gone - 1].term
            self.base = index
            del self.entries[:gone], self._sizes[:gone], self._voters[:gone]

    def begin_at(self, index: int, term: int, voters: Voters) -> None:
        """A snapshot takes the place of all that we have, unless we have what follows it."""
        if self.term_at(index) == term and index <= self.last_index:
            self.compact(index)
            return
        self.base, self.base_term, self.reconfigured, self._forked = index, term, 0, 0
        self.entries, self._sizes, self._voters = [], [], [voters]

    def after(self, index: int) -> Sequence[LogEntry]:
        """The next entries for somebody who has `index`: as many as one message holds."""
        start = index - self.base
        assert start >= 0, "what a snapshot covers is not here any more"
        stop, size = start, 0
        while stop < min(len(self.entries), start + ENTRIES_MAX):
            size += self._sizes[stop]
            if size > ENTRY_BYTES_MAX:
                break
            stop += 1
        return self.entries[start:stop]

    def since(self, index: int) -> list[LogEntry]:
        """Every entry from `index` on."""
        return self.entries[index - self.base - 1 :]


def _opens_fork(entry: LogEntry) -> bool:
    return isinstance(entry.body, Restore) and bool(entry.body.fork)
