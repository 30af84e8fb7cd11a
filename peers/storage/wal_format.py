"""The bytes of a peer's log on disk, and the state that they lead to (wal.py writes them).

    header     magic, version, salt, number of sealed records, digest of these
    record     mark, length, digest of the payload, digest of these | msgpack payload

A record is one Persist; applied in order, they give the state. Sealed ones were on the disk before
the file got its name, so a crash can break only the last one after them. All else that is wrong is
damage. Digests are seeded by file and place, so that neither a copy in a payload nor an old block
of the disk passes for a record. Must NOT read or write.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgpack
import xxhash

from protocols.interface.commands import Persist
from protocols.messages.persisted import Saved, Snapshot
from protocols.types.limits import CONTROL_BYTES_MAX, ENTRIES_MAX, SNAPSHOT_BYTES_MAX
from protocols.wire.codec import decode_entry, encode_entry

VERSION = 4
RECORD_BYTES_MAX = 65 << 20
"""Longer ones are not written: their content takes the place of the file, cut into shorter ones."""
assert RECORD_BYTES_MAX >= SNAPSHOT_BYTES_MAX + (64 << 10)
assert RECORD_BYTES_MAX >= ENTRIES_MAX * CONTROL_BYTES_MAX + (64 << 10)

MAGIC = b"LOWCOMMW"
MARK = b"\xf5REC"  # Its first byte stands in no UTF-8 text, so that few payloads hold a mark.
HEADER = struct.Struct("<8sIQQ")
HEAD = struct.Struct("<4sIQ")
DIGEST_BYTES = 8
"""After the fields of both: over these."""
RECORDS_AT = HEADER.size + DIGEST_BYTES


class DamageError(ValueError):
    """What is wrong with the file; `open` says where, and what to do."""


@dataclass(frozen=True, slots=True)
class Change:
    """A Persist, its entries encoded: what a record holds."""

    term: int
    vote: str
    first: int
    entries: Sequence[bytes]
    snapshot: Snapshot | None

    @classmethod
    def of(cls, persist: Persist) -> "Change":
        entries = [encode_entry(entry) for entry in persist.entries]
        for index, entry in enumerate(persist.entries, persist.first):
            assert entry.index == index, "entries stand at their index"
        assert all(len(entry) <= CONTROL_BYTES_MAX for entry in entries), "none could be read again"
        snapshot = persist.snapshot
        assert snapshot is None or len(snapshot.image) <= SNAPSHOT_BYTES_MAX
        return cls(persist.term, persist.vote, persist.first, entries, snapshot)

    def pack(self) -> bytes:
        image = self.snapshot and [self.snapshot.index, self.snapshot.term, self.snapshot.image]
        fields = [self.term, self.vote, self.first, self.entries, image]
        return cast("bytes", msgpack.packb(fields))

    @classmethod
    def unpack(cls, payload: memoryview) -> "Change":
        """Raises DamageError: its digest is right, so it was written like this."""
        try:
            raw = cast("object", msgpack.unpackb(payload))
        except ValueError as error:
            raise DamageError("a record is not msgpack") from error
        match raw:
            case [int(term), str(vote), int(first), list(), None]:
                snapshot = None
            case [int(term), str(vote), int(first), list(), [int(index), int(of), bytes(image)]]:
                snapshot = Snapshot(index, of, image)
            case _:
                raise DamageError("a record has other fields than this version writes")
        entries = cast("list[object]", cast("list[object]", raw)[3])
        if not all(isinstance(entry, bytes) for entry in entries):
            raise DamageError("a record has other entries than this version writes")
        return cls(term, vote, first, cast("list[bytes]", entries), snapshot)


@dataclass(slots=True)
class State:
    """What the records so far have led to."""

    term: int = 0
    vote: str = ""
    snapshot: Snapshot | None = None
    entries: list[bytes] = field(default_factory=list[bytes])
    alive_bytes: int = 0
    """Of the entries and the snapshot."""

    @property
    def base(self) -> int:
        return self.snapshot.index if self.snapshot else 0

    def copy(self) -> "State":
        return replace(self, entries=self.entries.copy())

    def takes(self, change: Change) -> bool:
        """No gap before the first entry, and no older snapshot."""
        base = change.snapshot.index if change.snapshot else self.base
        last = max(base, self.base + len(self.entries))
        return base >= self.base and 1 <= change.first <= last + 1

    def apply(self, change: Change) -> None:
        """Only what `takes` said yes to."""
        self.term, self.vote = change.term, change.vote
        if change.snapshot is not None:
            self._replace(0, change.snapshot.index - self.base, ())
            self.alive_bytes += len(change.snapshot.image)
            self.alive_bytes -= len(self.snapshot.image) if self.snapshot else 0
            self.snapshot = change.snapshot
        place = change.first - 1 - self.base
        # Before the base: the snapshot says what these entries have led to.
        self._replace(max(place, 0), len(self.entries), change.entries[max(-place, 0) :])

    def changes(self) -> list[Change]:
        """What leads here from nothing: the snapshot, then entries by the message."""
        first = self.base + 1
        parts = [
            Change(self.term, self.vote, first + at, self.entries[at : at + ENTRIES_MAX], None)
            for at in range(0, len(self.entries), ENTRIES_MAX)
        ]
        return [Change(self.term, self.vote, first, (), self.snapshot), *parts]

    def saved(self) -> Saved:
        """Raises WireError when an entry is none, or DamageError when it has another place."""
        entries = tuple(decode_entry(entry) for entry in self.entries)
        for index, entry in enumerate(entries, self.base + 1):
            if entry.index != index:
                raise DamageError(f"entry {entry.index} stands at {index}")
        return Saved(self.term, self.vote, self.snapshot, entries)

    def _replace(self, start: int, stop: int, entries: Sequence[bytes]) -> None:
        self.alive_bytes += sum(map(len, entries)) - sum(map(len, self.entries[start:stop]))
        self.entries[start:stop] = entries


def load(data: bytes) -> tuple[State, int, int]:
    """The state that a file has led to, its salt, and where its last whole record ends.

    Raises DamageError.
    """
    salt, sealed = _read_header(data)
    state, end, records = State(), RECORDS_AT, 0
    for payload in _payloads(data, salt):
        change = Change.unpack(payload)
        if not state.takes(change):
            raise DamageError(f"the record at byte {end} does not fit to those before it")
        state.apply(change)
        end += HEAD.size + DIGEST_BYTES + len(payload)
        records += 1
    if records < sealed:
        raise DamageError(f"it is damaged at byte {end}")  # What no crash can have torn.
    return state, salt, end


def pack_header(salt: int, sealed: int) -> bytes:
    """Of a file that gets its name when so many records are on the disk."""
    return _sealed(HEADER.pack(MAGIC, VERSION, salt, sealed), 0)


def pack_record(change: Change, salt: int, offset: int) -> bytes:
    """As it stands at this byte of the file."""
    payload = change.pack()
    seed = _seed(salt, offset)
    digest = xxhash.xxh3_64_intdigest(payload, seed=seed)
    return _sealed(HEAD.pack(MARK, len(payload), digest), seed) + payload


def _payloads(data: bytes, salt: int) -> Iterator[memoryview]:
    """The records' payloads, but for a last one that is torn. Raises DamageError."""
    offset = RECORDS_AT
    while offset < len(data):
        head = _head_at(data, offset, salt)
        if head is None:
            if _any_head_after(data, offset, salt):
                raise DamageError(f"it is damaged at byte {offset}")
            return
        length, digest = head
        start = offset + HEAD.size + DIGEST_BYTES
        payload = memoryview(data)[start : start + length]
        if xxhash.xxh3_64_intdigest(payload, seed=_seed(salt, offset)) != digest:
            if start + length < len(data):  # It was synced before the next one was begun.
                raise DamageError(f"it is damaged at byte {offset}")
            return
        yield payload
        offset = start + length


def _head_at(data: bytes, offset: int, salt: int) -> tuple[int, int] | None:
    """Length and digest of the payload."""
    fields = _unsealed(HEAD, data, offset, _seed(salt, offset))
    return None if fields is None or fields[0] != MARK else (fields[1], fields[2])


def _any_head_after(data: bytes, offset: int, salt: int) -> bool:
    at = data.find(MARK, offset + 1)
    while at >= 0:
        if _head_at(data, at, salt):
            return True
        at = data.find(MARK, at + 1)
    return False


def _read_header(data: bytes) -> tuple[int, int]:
    """Salt and number of sealed records. The version is looked at first: another one may have
    another header."""
    if len(data) < RECORDS_AT or not data.startswith(MAGIC):
        raise DamageError("it does not begin as a log of ours")
    version = HEADER.unpack_from(data)[1]
    if version != VERSION:
        raise DamageError(f"it has format {version}, this version of lowcomm reads {VERSION}")
    fields = _unsealed(HEADER, data, 0, 0)
    if fields is None:
        raise DamageError("its header is damaged")
    return fields[2], fields[3]


def _sealed(fields: bytes, seed: int) -> bytes:
    return fields + xxhash.xxh3_64_digest(fields, seed=seed)


def _unsealed(form: struct.Struct, data: bytes, offset: int, seed: int) -> tuple[Any, ...] | None:
    """The fields that begin at this byte, if their digest follows them."""
    fields = data[offset : offset + form.size]
    end = offset + form.size + DIGEST_BYTES
    return form.unpack(fields) if data[offset:end] == _sealed(fields, seed) else None


def _seed(salt: int, offset: int) -> int:
    return (salt + offset) & ((1 << 64) - 1)
