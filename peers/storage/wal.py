"""The write-ahead log of one peer: term, vote, log entries and snapshot (protocol.md section 1).

    <directory>/wal         wal_format.py says what is in it
                wal.new     the next one, while it is written

A write appends one record and syncs it, or writes the whole state into a new file, syncs that and
renames it. So a crash can break only the last record, if its write had not returned (`open` cuts it
off), and the new file (`open` removes it). Everything else is damage: WalError, since a peer that
may have forgotten a promise must not return. One process and one thread at a time use a directory;
the caller holds a lock. Must NOT decide what is written, or when.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers.storage.wal_format import (
    RECORD_BYTES_MAX,
    RECORDS_AT,
    Change,
    DamageError,
    State,
    load,
    pack_header,
    pack_record,
)
from protocols.interface import Persist
from protocols.messages import Saved
from protocols.types import LowcommError
from protocols.wire import WireError

WAL_BYTES_MAX = 16 << 20
"""Bytes. A longer file is rewritten once less than half of it is alive. So many bytes take 0.03 s
to rewrite, and 1.2 s to read at the start if all are alive: 27,000 Commits of 8 peers
(measured)."""

FILE, BESIDE = "wal", "wal.new"

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


class WalError(LowcommError):
    """The disk fails, or its content cannot be trusted: what, why, and what to do."""


class UntrustedError(WalError):
    """The file is damaged, or this version cannot read it."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The system calls that matter for a crash; tests observe them and make them fail."""

    write: Callable[[int, memoryview], int] = os.write
    truncate: Callable[[int, int], None] = os.ftruncate
    sync: Callable[[int], None] = os.fdatasync
    replace: Callable[[Path, Path], None] = os.replace
    sync_directory: Callable[[int], None] = os.fsync


SYSTEM: Final = Disk()


class Wal:
    """An open log. Call `open`, not the constructor."""

    def __init__(self, directory: Path, *, disk: Disk, bytes_max: int) -> None:
        self.cut_bytes = 0
        """Bytes of an unfinished record that `open` cut off."""
        self._directory = directory
        self._path = directory / FILE
        self._disk = disk
        self._bytes_max = bytes_max
        self._state = State()
        """The state after the last write that returned."""
        self._fd: int | None = None
        self._salt = 0
        self._end = 0
        self._anew = True
        """The next write begins a new file: there is none, or the present one must not be appended
        to."""
        self._closed = False

    @classmethod
    def open(
        cls, directory: Path, *, disk: Disk = SYSTEM, bytes_max: int = WAL_BYTES_MAX
    ) -> tuple["Wal", Saved | None]:
        """Make the directory, or read its log. The saved state is None if nothing was ever written.

        The returned state is on the disk. Raises UntrustedError if the file is damaged or of
        another version; WalError if the disk fails.
        """
        wal = cls(directory.absolute(), disk=disk, bytes_max=bytes_max)
        try:
            (wal._directory / BESIDE).unlink(missing_ok=True)
            if wal._path.exists():
                return wal, wal._load()
            wal._make_directory(wal._directory)
        except OSError as error:
            wal.close()
            raise WalError(_refused("open", wal._path, error)) from error
        except (DamageError, WireError) as error:
            wal.close()
            raise UntrustedError(f"cannot trust {wal._path}: {error}") from error
        return wal, None

    def write(self, persist: Persist) -> None:
        """Write one Persist; blocks until it is on the disk.

        Raises WalError if the disk fails. Then the write has no effect here and is not repeated;
        the caller may try again. A restart finds the state before it (or after it, if the disk also
        fails to take it back: to keep more than was promised is safe).
        """
        assert not self._closed, "closed: another process may own the directory"
        change = Change.of(persist)
        assert self._state.takes(change), "the log has no gaps, and no snapshot goes back"
        try:
            record = pack_record(change, self._salt, self._end)
            if self._anew or change.snapshot is not None or self._too_large(len(record)):
                self._write_anew(change)
            else:
                self._append(record)
                self._state.apply(change)
        except OSError as error:
            raise WalError(_refused("write", self._path, error)) from error

    def close(self) -> None:
        """Idempotent. No write may follow: another process may use the directory then."""
        self._closed = True
        self._swap(None)

    def _append(self, record: bytes) -> None:
        assert self._fd is not None
        self._anew = True  # Cleared when this write has succeeded.
        try:
            self._put(self._fd, record)
        except OSError:
            self._disk.truncate(self._fd, self._end)
            self._anew = False  # The file is as before, and no sync of it has failed.
            raise
        try:
            self._disk.sync(self._fd)
        except OSError:
            # Linux marks pages clean that it failed to write, so a second sync would succeed and
            # mean nothing: never append here again. Cut the record off, so that no restart finds
            # it.
            with contextlib.suppress(OSError):
                self._disk.truncate(self._fd, self._end)
            raise
        self._end += len(record)
        self._anew = False

    def _too_large(self, record_bytes: int) -> bool:
        end = self._end + record_bytes
        mostly_dead = 2 * self._state.alive_bytes < end
        return record_bytes > RECORD_BYTES_MAX or (end > self._bytes_max and mostly_dead)

    def _write_anew(self, change: Change) -> None:
        state = self._state.copy()
        state.apply(change)
        beside = self._directory / BESIDE
        beside.unlink(missing_ok=True)
        fd = os.open(beside, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            salt, end = self._fill(fd, state)
            # Before the rename: else the name may be on the disk without the bytes.
            self._disk.sync(fd)
            # Until the name is on the disk too: a crash may bring back the old file.
            self._anew = True
            self._disk.replace(beside, self._path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):  # Remove the partial file from the full disk.
                beside.unlink(missing_ok=True)
            raise
        self._swap(fd)
        self._salt, self._end = salt, end
        self._sync_directory(self._directory)
        self._state, self._anew = state, False

    def _fill(self, fd: int, state: State) -> tuple[int, int]:
        """Write the whole state into an empty file. Returns (salt, end of the file)."""
        salt = int.from_bytes(os.urandom(8), "little")
        changes = state.changes()
        self._put(fd, pack_header(salt, first_records=len(changes)))
        end = RECORDS_AT
        for change in changes:
            record = pack_record(change, salt, end)
            self._put(fd, record)
            end += len(record)
        return salt, end

    def _put(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._disk.write(fd, rest) :]

    def _swap(self, fd: int | None) -> None:
        old, self._fd = self._fd, fd
        if old is not None:
            with contextlib.suppress(OSError):  # Writes that returned are on the disk already.
                os.close(old)

    def _make_directory(self, directory: Path) -> None:
        if not directory.parent.is_dir():
            self._make_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        # Also if it existed: its maker may not have synced it.
        self._sync_directory(directory.parent)

    def _sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._disk.sync_directory(fd)
        finally:
            os.close(fd)

    def _load(self) -> Saved:
        self._fd = os.open(self._path, _FLAGS)
        with open(self._fd, "rb", closefd=False) as file:
            data = file.read()  # The whole file: so no length in it can exceed it.
        self._state, self._salt, self._end = load(data)
        saved = self._state.saved()
        self.cut_bytes = len(data) - self._end
        if self.cut_bytes:
            self._disk.truncate(self._fd, self._end)
        # Other peers rely on it at once, and a killed process may not have synced it.
        self._disk.sync(self._fd)
        self._sync_directory(self._directory)
        self._anew = False
        return saved


def _refused(what: str, path: Path, error: OSError) -> str:
    return f"cannot {what} {path}: {error.strerror}; this disk must have room and be writable"
