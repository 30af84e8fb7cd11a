"""The format of the write-ahead log, and the state that its records lead to (wal.py writes them).

    header     magic, version, salt, number of first records, digest of these
    record     mark, length, digest of the payload, digest of these | msgpack payload

A record is one Persist; applied in order, the records give the state. The first records were on
the disk before the file got its name, so a crash can break only the last record after them.
Everything else is damage. Digests are seeded by file and position, so that neither a copy in a
payload nor an old block of the disk passes for a record. Must NOT read or write files.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgpack
import xxhash

from protocols.interface import Persist
from protocols.messages import Saved, Snapshot
from protocols.types import CONTROL_BYTES_MAX, ENTRIES_MAX, SNAPSHOT_BYTES_MAX
from protocols.wire import decode_entry, encode_entry

VERSION = 11
RECORD_BYTES_MAX = 65 << 20
"""Bytes. A longer record is not written: its content replaces the file, divided into shorter
ones."""
assert RECORD_BYTES_MAX >= SNAPSHOT_BYTES_MAX + (64 << 10)
assert RECORD_BYTES_MAX >= ENTRIES_MAX * CONTROL_BYTES_MAX + (64 << 10)

MAGIC = b"LOWCOMMW"
MARK = b"\xf5REC"  # Its first byte occurs in no UTF-8 text, so few payloads contain a mark.
HEADER = struct.Struct("<8sIQQ")
HEAD = struct.Struct("<4sIQ")
DIGEST_BYTES = 8
"""Bytes of the digest over the fields of a header or record head, which follows them."""
RECORDS_AT = HEADER.size + DIGEST_BYTES


class DamageError(ValueError):
    """What is wrong with the file; `open` adds where, and what to do."""


@dataclass(frozen=True, slots=True)
class Change:
    """The content of a record: a Persist with encoded entries."""

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
        """Decode a record's payload. Raises DamageError: its digest is right, so it was written
        so."""
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
    """The state that the records so far have led to."""

    term: int = 0
    vote: str = ""
    snapshot: Snapshot | None = None
    entries: list[bytes] = field(default_factory=list[bytes])
    alive_bytes: int = 0
    """Bytes of the entries and the snapshot."""

    @property
    def base(self) -> int:
        return self.snapshot.index if self.snapshot else 0

    def copy(self) -> "State":
        return replace(self, entries=self.entries.copy())

    def takes(self, change: Change) -> bool:
        """Can the change be applied: no gap before its first entry, no older snapshot?"""
        base = change.snapshot.index if change.snapshot else self.base
        last = max(base, self.base + len(self.entries))
        return base >= self.base and 1 <= change.first <= last + 1

    def apply(self, change: Change) -> None:
        """Apply a change that `takes` accepts."""
        self.term, self.vote = change.term, change.vote
        if change.snapshot is not None:
            self._replace(0, change.snapshot.index - self.base, ())
            self.alive_bytes += len(change.snapshot.image)
            self.alive_bytes -= len(self.snapshot.image) if self.snapshot else 0
            self.snapshot = change.snapshot
        place = change.first - 1 - self.base
        # Before the base: the snapshot has the state after these entries.
        self._replace(max(place, 0), len(self.entries), change.entries[max(-place, 0) :])

    def changes(self) -> list[Change]:
        """Changes that lead from the empty state to this one: the snapshot, then entries."""
        first = self.base + 1
        parts = [
            Change(self.term, self.vote, first + at, self.entries[at : at + ENTRIES_MAX], None)
            for at in range(0, len(self.entries), ENTRIES_MAX)
        ]
        return [Change(self.term, self.vote, first, (), self.snapshot), *parts]

    def saved(self) -> Saved:
        """The state as a record. Raises WireError for an undecodable entry, DamageError for a wrong
        index."""
        entries = tuple(decode_entry(entry) for entry in self.entries)
        for index, entry in enumerate(entries, self.base + 1):
            if entry.index != index:
                raise DamageError(f"entry {entry.index} stands at {index}")
        return Saved(self.term, self.vote, self.snapshot, entries)

    def _replace(self, start: int, stop: int, entries: Sequence[bytes]) -> None:
        self.alive_bytes += sum(map(len, entries)) - sum(map(len, self.entries[start:stop]))
        self.entries[start:stop] = entries


def load(data: bytes) -> tuple[State, int, int]:
    """Returns (state of the file, its salt, end of its last whole record). Raises DamageError."""
    salt, first_records = _read_header(data)
    state, end, records = State(), RECORDS_AT, 0
    for payload in _payloads(data, salt):
        change = Change.unpack(payload)
        if not state.takes(change):
            raise DamageError(f"the record at byte {end} does not fit the records before it")
        state.apply(change)
        end += HEAD.size + DIGEST_BYTES + len(payload)
        records += 1
    if records < first_records:
        raise DamageError(f"it is damaged at byte {end}")  # A crash cannot have torn this record.
    return state, salt, end


def pack_header(salt: int, first_records: int) -> bytes:
    """The header of a file that gets its name once so many records are on the disk."""
    return _with_digest(HEADER.pack(MAGIC, VERSION, salt, first_records), 0)


def pack_record(change: Change, salt: int, offset: int) -> bytes:
    """The bytes of a record at this position of the file."""
    payload = change.pack()
    seed = _seed(salt, offset)
    digest = xxhash.xxh3_64_intdigest(payload, seed=seed)
    return _with_digest(HEAD.pack(MARK, len(payload), digest), seed) + payload


def _payloads(data: bytes, salt: int) -> Iterator[memoryview]:
    """The payloads of the records, without a torn last one. Raises DamageError."""
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
            if start + length < len(data):  # It was synced before the next record was begun.
                raise DamageError(f"it is damaged at byte {offset}")
            return
        yield payload
        offset = start + length


def _head_at(data: bytes, offset: int, salt: int) -> tuple[int, int] | None:
    """(length, digest) of the payload at this position; None if there is no whole record head."""
    fields = _checked(HEAD, data, offset, _seed(salt, offset))
    return None if fields is None or fields[0] != MARK else (fields[1], fields[2])


def _any_head_after(data: bytes, offset: int, salt: int) -> bool:
    at = data.find(MARK, offset + 1)
    while at >= 0:
        if _head_at(data, at, salt):
            return True
        at = data.find(MARK, at + 1)
    return False


def _read_header(data: bytes) -> tuple[int, int]:
    """(salt, number of first records). The version is checked first, since another version may
    have another header."""
    if len(data) < RECORDS_AT or not data.startswith(MAGIC):
        raise DamageError("it does not begin like a log of lowcomm")
    version = HEADER.unpack_from(data)[1]
    if version != VERSION:
        raise DamageError(f"it has format {version}, this version of lowcomm reads {VERSION}")
    fields = _checked(HEADER, data, 0, 0)
    if fields is None:
        raise DamageError("its header is damaged")
    return fields[2], fields[3]


def _with_digest(fields: bytes, seed: int) -> bytes:
    return fields + xxhash.xxh3_64_digest(fields, seed=seed)


def _checked(form: struct.Struct, data: bytes, offset: int, seed: int) -> tuple[Any, ...] | None:
    """The fields at this position, if the digest after them is right."""
    fields = data[offset : offset + form.size]
    end = offset + form.size + DIGEST_BYTES
    return form.unpack(fields) if data[offset:end] == _with_digest(fields, seed) else None


def _seed(salt: int, offset: int) -> int:
    return (salt + offset) & ((1 << 64) - 1)
