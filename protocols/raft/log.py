"""The log of this peer: entries in order, committed or not, with the voters and the hash of the
whole log after each.

Entries up to `base` are dropped: a snapshot has the state that they led to. Must NOT decide what is
appended (leader/decisions.py), what is committed (commitment.py) nor what an entry means
(state/run_state.py).
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from hashlib import blake2b

from protocols.messages.log_entries import Entry, Left, LogEntry, Lost, Restore, Run, Voter
from protocols.messages.peer import Append
from protocols.types.errors import LogError, RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.types.limits import ENTRIES_MAX, ENTRY_BYTES_MAX
from protocols.wire.codec import encode_entry, readable_bytes

Sign = Callable[[LogEntry], bytes]
Judge = Callable[[Sequence[LogEntry]], str]
"""(entries that would follow the log from their first index on) -> why they cannot; "" if they
can."""
Voters = tuple[PeerId, ...]
"""The peers that vote, sorted by how long they have been members, oldest first."""
EMPTY_HASH = bytes(32)
"""The hash of a log without entries."""


def voters_after(voters: Voters, body: Entry) -> Voters:
    """The voters after an entry (Raft's configuration); valid as soon as the entry is appended."""
    match body:
        case Run(founder=founder):
            return (founder,)
        case Restore(voters=chosen) if chosen:
            return chosen  # A fork: the other voters are gone, or go on in a branch of their own.
        case Voter(peer=peer, votes=True) if peer not in voters:
            return (*voters, peer)
        case Voter(peer=peer, votes=False) | Left(peer=peer) | Lost(peer=peer):
            return tuple(voter for voter in voters if voter != peer)
        case _:
            return voters


def packed_entry(entry: LogEntry) -> bytes:
    """The encoded entry. Raises LogError if no message can carry it."""
    packed = encode_entry(entry)
    if len(packed) > ENTRY_BYTES_MAX:
        what = f"entry {entry.index} of the log would take {len(packed)} bytes"
        raise LogError(f"{what}, and at most {ENTRY_BYTES_MAX} fit into a message")
    return packed


def hash_after(before: bytes, packed: bytes) -> bytes:
    """The hash of a log after one more encoded entry, from its hash before: BLAKE2b, 32 bytes."""
    return blake2b(before + packed, digest_size=len(EMPTY_HASH)).digest()


class Log:
    """Entries after the snapshot, and the voters after each of them."""

    def __init__(self, judge: Judge = lambda _: "") -> None:
        """`judge` is asked about the entries of a leader before they are adopted."""
        self.judge = judge
        self.base = 0
        """Index of the last entry that the snapshot covers; 0: none."""
        self.base_term = 0
        self.entries: list[LogEntry] = []
        self._sizes: list[int] = []
        """Encoded size of each entry, bytes."""
        self._voters: list[Voters] = [()]
        """The voters at `base`, then after each entry."""
        self._hashes: list[bytes] = [EMPTY_HASH]
        """The hash of the whole log up to `base`, then up to each entry."""
        self.reconfigured = 0
        """Index of the last held entry that changed the voters."""
        self._forked = 0
        """Index of the last held entry that opened a fork."""
        self.doubted = False
        """A leader has sent us other entries than all other peers: those of equal term may differ.
        The next entries that we are sent replace them."""

    @property
    def last_index(self) -> int:
        return self.base + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base_term

    @property
    def voters(self) -> Voters:
        return self._voters[-1]

    def voters_at(self, index: int) -> Voters:
        """The voters after the entry at an index that is held, or up to the snapshot."""
        return self._voters[index - self.base]

    def forks_after(self, index: int) -> tuple[int, ...]:
        """The forks that entries after `index` open."""
        if index >= self._forked:
            return ()  # The usual case; the caller asks after each event.
        later = (entry.body for entry in self.since(index + 1))
        return tuple(body.fork for body in later if isinstance(body, Restore) and body.fork)

    def voted_since(self, peer: PeerId, index: int) -> bool:
        """Does the peer vote, or did it after an entry from `index` on? The entry that took its
        vote may never be committed (Ongaro's thesis 4.2.2)."""
        return any(peer in voters for voters in self._voters[index - self.base :])

    def is_majority(self, peers: Set[PeerId], *, without: PeerId | None = None) -> bool:
        """Are more than half of the voters (not counting `without`) among these peers?"""
        voters = set(self.voters) - {without}
        return 2 * len(peers & voters) > len(voters)

    def term_at(self, index: int) -> int | None:
        """Term of the entry at this index; None if it is not held any more, or not yet."""
        if index == self.base:
            return self.base_term
        place = index - self.base - 1
        return self.entries[place].term if 0 <= place < len(self.entries) else None

    def hash_at(self, index: int) -> bytes:
        """The hash of the whole log up to an index that is held, or up to the snapshot."""
        return self._hashes[index - self.base]

    def hash_with(self, previous: int, entries: Sequence[LogEntry]) -> bytes:
        """The hash of our log up to index `previous`, which we hold or our snapshot covers, and of
        these entries after it."""
        begin = max(previous, self.base)
        found = self.hash_at(begin)
        for entry in entries[begin - previous :]:
            found = hash_after(found, encode_entry(entry))
        return found

    def before_conflict(self, index: int, *, floor: int) -> int:
        """Our entry at `index` differs from the leader's: the highest index at which the logs may
        agree, not below `floor` (committed). It skips a whole term at once."""
        last = min(index, self.last_index)
        wrong = self.term_at(last) if last == index else None
        while wrong is not None and last > floor and self.term_at(last) == wrong:
            last -= 1
        return max(last, floor)

    def append(self, body: Entry, *, term: int, sign: Sign | None = None) -> LogEntry:
        """Append an entry as leader; `sign` gives its signature if it changes the voters.

        Raises LogError if no peer could read the entry; then nothing has changed.
        """
        entry = LogEntry(index=self.last_index + 1, term=term, body=body)
        if sign is not None and voters_after(self.voters, body) != self.voters:
            entry = replace(entry, signature=sign(entry))
        self._add(entry, readable_bytes(entry))
        return entry

    def add(self, entry: LogEntry) -> None:
        """Append an entry that was received and decoded; its index is the next one. Raises LogError
        if no message can carry it."""
        self._add(entry, packed_entry(entry))

    def _add(self, entry: LogEntry, packed: bytes) -> None:
        assert entry.index == self.last_index + 1, "the log has no gaps"
        voters = voters_after(self.voters, entry.body)
        if voters != self.voters:
            self.reconfigured = entry.index
        if _opens_fork(entry):
            self._forked = entry.index
        self.entries.append(entry)
        self._sizes.append(len(packed))
        self._voters.append(voters)
        self._hashes.append(hash_after(self._hashes[-1], packed))

    def holds(self, entry: LogEntry) -> bool:
        """Is this very object in the log, so that all entries before it are the same too?"""
        place = entry.index - self.base - 1
        return 0 <= place < len(self.entries) and self.entries[place] is entry

    def cut_off(self, index: int) -> None:
        """Drop the entries from `index` on: a newer leader has other entries there."""
        keep = index - self.base - 1
        assert keep >= 0, "what a snapshot covers is committed"
        del self.entries[keep:], self._sizes[keep:]
        del self._voters[keep + 1 :], self._hashes[keep + 1 :]
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
        """Adopt the leader's entries after one that both logs share; return the first index that
        changed, or None. Raises RemoteProtocolError if a committed entry (up to `floor`) would
        change, or if the judge refuses one.

        The entries were received and decoded. Raises LogError as `add`. After any error the log is
        unchanged.
        """
        for index, entry in enumerate(entries, start=header.previous_index + 1):
            if entry.index != index or not 0 < entry.term <= header.term:
                raise RemoteProtocolError(sender, f"sends entry {entry.index} instead of {index}")
        new = [entry for entry in entries if entry.index > self.base]
        while new and self._has(new[0]):
            del new[0]
        # First all checks: a half-changed log would not be written to the disk.
        packed = [packed_entry(entry) for entry in new]
        if not new:
            self.doubted = self.doubted and not entries
            return None
        first = new[0].index
        if first <= min(floor, self.last_index):
            raise RemoteProtocolError(sender, f"rewrites log entry {first}")
        if why := self.judge(new):
            raise RemoteProtocolError(sender, f"sends an invalid log: {why}")
        if first <= self.last_index:
            self.cut_off(first)
        self.doubted = False
        for entry, encoded in zip(new, packed, strict=True):
            self._add(entry, encoded)
        return first

    def _has(self, entry: LogEntry) -> bool:
        """Do we hold this entry of the leader? Of one term, an index has one entry."""
        if self.term_at(entry.index) != entry.term:
            return False
        held = self.entries[entry.index - self.base - 1]
        return not self.doubted or held == entry

    def compact(self, index: int) -> None:
        """Drop the entries up to `index`, which is committed: a snapshot has their state."""
        gone = index - self.base
        assert 0 <= gone <= len(self.entries)
        if gone:
            self.base_term = self.entries[gone - 1].term
            self.base = index
            del self.entries[:gone], self._sizes[:gone], self._voters[:gone], self._hashes[:gone]

    def begin_at(self, index: int, term: int, voters: Voters, log_hash: bytes) -> None:
        """Begin after a snapshot, with the voters and the hash of the log there; entries that
        follow it are kept if the log holds its last entry."""
        if self.term_at(index) == term and index <= self.last_index:
            self.compact(index)
            return
        self.base, self.base_term, self.reconfigured, self._forked = index, term, 0, 0
        self.doubted = False
        self.entries, self._sizes, self._voters, self._hashes = [], [], [voters], [log_hash]

    def after(self, index: int) -> Sequence[LogEntry]:
        """The entries after `index`, as many as one message can carry."""
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
        """All entries from `index` on."""
        return self.entries[index - self.base - 1 :]


def _opens_fork(entry: LogEntry) -> bool:
    return isinstance(entry.body, Restore) and bool(entry.body.fork)
