"""What the tests of a peer's log on disk share: a model of it, and disks that fail.

`Machine` stands between the log and the real files: it knows what a loss of power may leave of
them, and lets chosen calls fail. Must NOT replace any class of ours.
"""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import strategies as st

from peers.storage.wal import FILE, SYSTEM, WAL_BYTES_MAX, Disk, Wal
from protocols.interface.commands import Persist
from protocols.messages.log_entries import LogEntry, Lost
from protocols.messages.persisted import Saved, Snapshot
from protocols.types.ids import PeerId

NOTHING = Saved(0, "", None, ())


def no_sync(fd: int) -> None:
    """For looking at what is there: quicker."""


UNSYNCED = replace(SYSTEM, sync=no_sync, sync_directory=no_sync)


def entry(index: int, term: int = 1, why: str = "silent") -> LogEntry:
    return LogEntry(index, term, Lost(PeerId("beta"), why))


def persist(
    first: int, *terms: int, term: int = 1, vote: str = "", snapshot: Snapshot | None = None
) -> Persist:
    """Entries of these terms from `first` on."""
    entries = tuple(entry(index, of) for index, of in enumerate(terms, first))
    return Persist(0, term, vote, first, entries, snapshot)


def after(saved: Saved, change: Persist) -> Saved:
    """The model: as protocols/interface/commands.py describes a Persist, word by word."""
    kept = {one.index: one for one in saved.entries if one.index < change.first}
    kept |= {one.index: one for one in change.entries}
    snapshot = change.snapshot or saved.snapshot
    base = snapshot.index if snapshot else 0
    entries = tuple(kept[index] for index in sorted(kept) if index > base)
    return Saved(change.term, change.vote, snapshot, entries)


@st.composite
def next_persist(draw: st.DrawFn, saved: Saved) -> Persist:
    """Anything that a core may ask for after `saved`."""
    base = saved.snapshot.index if saved.snapshot else 0
    last = saved.entries[-1].index if saved.entries else base
    snapshot = None
    if draw(st.sampled_from((False, False, False, True))):
        index = draw(st.integers(base, last + 3))
        snapshot = Snapshot(index, 1, draw(st.binary(max_size=50)))
        base, last = index, max(index, last)
    term = draw(st.integers(0, (1 << 32) - 1))
    first = draw(st.one_of(st.just(last + 1), st.integers(max(1, base - 1), last + 1)))
    texts = draw(st.lists(st.sampled_from(("", "silent", "x" * 200)), max_size=4))
    entries = tuple(entry(index, term, why) for index, why in enumerate(texts, first))
    return Persist(0, term, draw(st.sampled_from(("", "a", "b"))), first, entries, snapshot)


@contextmanager
def opened(
    directory: Path, disk: Disk = UNSYNCED, bytes_max: int = WAL_BYTES_MAX
) -> Generator[tuple[Wal, Saved | None]]:
    wal, saved = Wal.open(directory, disk=disk, bytes_max=bytes_max)
    try:
        yield wal, saved
    finally:
        wal.close()


def found(directory: Path) -> Saved | None:
    with opened(directory) as (_, saved):
        return saved


def found_in(content: bytes | None, directory: Path) -> Saved | None:
    """What a node starts with whose file is this."""
    (directory / FILE).unlink(missing_ok=True)
    if content is not None:
        (directory / FILE).write_bytes(content)
    return found(directory)


def written(directory: Path, *changes: Persist, bytes_max: int = WAL_BYTES_MAX) -> list[int]:
    """Write these; returns the size of the file after each."""
    sizes: list[int] = []
    with opened(directory, bytes_max=bytes_max) as (wal, _):
        for change in changes:
            wal.write(change)
            sizes.append((directory / FILE).stat().st_size)
    return sizes


THREE = (persist(1, 1, 1, 1), persist(4, 2, 2, term=2, vote="a"), persist(5, 3, term=3, vote="b"))
"""The last replaces an entry."""


@dataclass
class Inode:
    """A file, whatever it is called."""

    safe: bytes = b""
    """What of it is on the disk for sure."""
    lost: bool = False
    """A sync failed: the kernel calls the pages clean, and no later sync writes them."""


@dataclass
class Machine:
    """The real calls, watched; those whose number is in `fail_at` fail, half done."""

    directory: Path
    elsewhere: Path | None = None
    """Where the states are tried out that a loss of power may leave, if at all."""
    allowed: list[Saved | None] = field(default_factory=lambda: list[Saved | None]((None,)))
    fail_at: frozenset[int] = frozenset()
    calls: list[str] = field(default_factory=list[str])
    files: dict[int, Inode] = field(default_factory=dict[int, Inode])
    synced: list[Path] = field(default_factory=list[Path])
    """Directories."""
    named: Inode | None = None
    """Which file the name leads to after a loss of power, for sure."""

    @property
    def disk(self) -> Disk:
        return Disk(self.write, self.truncate, self.sync, self.replace, self.sync_directory)

    def write(self, fd: int, data: memoryview) -> int:
        status = os.fstat(fd)
        if status.st_size == 0:
            self.files[status.st_ino] = Inode()
        if self.fails("write"):
            os.write(fd, data[: len(data) // 2])
            self.refuse()
        return os.write(fd, data[:500])  # A disk may take less than it was given.

    def truncate(self, fd: int, size: int) -> None:
        if self.fails("truncate"):
            self.refuse()
        os.ftruncate(fd, size)
        self.files[os.fstat(fd).st_ino].lost = False

    def sync(self, fd: int) -> None:
        file = self.files[os.fstat(fd).st_ino]
        if self.fails("sync"):
            file.lost = True
            self.refuse()
        if not file.lost:
            file.safe = Path(f"/proc/self/fd/{fd}").read_bytes()

    def replace(self, source: Path, target: Path) -> None:
        if self.fails("replace"):
            self.refuse()
        os.replace(source, target)

    def sync_directory(self, fd: int) -> None:
        if self.fails("sync_directory"):
            self.refuse()
        self.synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        if os.path.samestat(os.fstat(fd), self.directory.stat()):
            self.named = self.current()

    def fails(self, call: str) -> bool:
        self.look()
        self.calls.append(call)
        return len(self.calls) in self.fail_at

    def refuse(self) -> None:
        self.look()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def current(self) -> Inode | None:
        path = self.directory / FILE
        return self.files[path.stat().st_ino] if path.exists() else None

    def look(self) -> None:
        if self.elsewhere is not None:
            for content in self.possible():
                assert found_in(content, self.elsewhere) in self.allowed

    def possible(self) -> set[bytes | None]:
        """What the file holds after a loss of power now, or the end of the process."""
        current = self.current()
        former = set[bytes | None]()
        if current is not self.named:
            former.add(self.named.safe if self.named else None)
        if current is None:
            return former or {None}
        now = (self.directory / FILE).read_bytes()
        if not now.startswith(current.safe):
            return former | {now, current.safe}  # Cut shorter.
        rest = now[len(current.safe) :]
        torn = {rest[:cut] for cut in (0, 1, 20, len(rest) // 2, max(0, len(rest) - 1), len(rest))}
        torn |= {part.ljust(len(rest), b"\0") for part in torn}
        return former | {current.safe + part for part in torn}
