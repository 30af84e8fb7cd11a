"""What a peer promised is found again: after a stop, a crash, a loss of power, a full disk."""

import contextlib
import os
import resource
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.storage.wal import BESIDE, FILE, WAL_BYTES_MAX, WalError
from peers.storage.wal_format import _read_header
from protocols.interface.commands import Persist
from protocols.messages.persisted import Saved, Snapshot
from tests.peers.wal_room import (
    NOTHING,
    THREE,
    Machine,
    after,
    entry,
    found,
    next_persist,
    opened,
    persist,
    written,
)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from((0, 300, WAL_BYTES_MAX)))
def test_what_was_written_is_found_again(data: st.DataObject, bytes_max: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        expected: Saved | None = None
        for _ in range(data.draw(st.integers(1, 3), label="lives")):
            with opened(Path(name), bytes_max=bytes_max) as (wal, saved):
                assert saved == expected
                for _ in range(data.draw(st.integers(0, 6), label="writes")):
                    change = data.draw(next_persist(expected or NOTHING))
                    wal.write(change)
                    expected = after(expected or NOTHING, change)
        assert found(Path(name)) == expected


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from((0, 300, WAL_BYTES_MAX)))
def test_no_loss_of_power_and_no_full_disk_takes_back_a_promise(
    data: st.DataObject, bytes_max: int
) -> None:
    """At every call: the disk holds the last promise, or what was being written after it."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as elsewhere:
        machine = Machine(Path(name), Path(elsewhere))
        saved: Saved | None = None
        for _ in range(data.draw(st.integers(1, 2), label="lives")):
            machine.fail_at = frozenset()
            with opened(Path(name), machine.disk, bytes_max) as (wal, found_there):
                assert found_there in machine.allowed
                saved, machine.allowed = found_there, [found_there]
                for _ in range(data.draw(st.integers(1, 4), label="writes")):
                    change = data.draw(next_persist(saved or NOTHING))
                    wanted = after(saved or NOTHING, change)
                    machine.allowed.append(wanted)
                    failing = data.draw(st.sampled_from((0, 1, 2, 3, 4, 5)), label="failing")
                    machine.fail_at = frozenset({len(machine.calls) + failing} - {0})
                    with contextlib.suppress(WalError):
                        wal.write(change)
                        saved, machine.allowed = wanted, [wanted]
                    machine.look()


def test_one_sync_a_write_and_a_new_file_in_the_order_that_a_crash_respects(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    anew = ["write", "write", "sync", "replace", "sync_directory"]
    with opened(tmp_path, machine.disk) as (wal, _):
        assert done(machine) == ["sync_directory"]  # Of the directory above.
        wal.write(persist(1, term=1))
        assert done(machine) == anew
        wal.write(persist(1, 1, 1))
        assert done(machine) == ["write", "sync"]
        wal.write(persist(3, snapshot=Snapshot(2, 1, b"image")))
        assert done(machine) == anew
    with opened(tmp_path, machine.disk):
        assert done(machine) == ["sync", "sync_directory"]  # A killed process may not have.


def done(machine: Machine) -> list[str]:
    calls, machine.calls = machine.calls, []
    return calls


def test_directories_that_are_made_are_synced_one_by_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with opened(tmp_path / "a" / "b", machine.disk) as (_, saved):
        assert saved is None
        assert machine.synced == [tmp_path, tmp_path / "a"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) & 0o077 == 0


def test_after_a_failed_sync_nothing_is_appended_to_that_file(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with opened(tmp_path, machine.disk) as (wal, _):
        wal.write(THREE[0])
        done(machine)
        machine.fail_at = frozenset({2})
        with pytest.raises(WalError, match=r"cannot write .*wal: No space left on device; "):
            wal.write(THREE[1])
        assert done(machine) == ["write", "sync", "truncate"]
        machine.fail_at = frozenset()
        wal.write(THREE[1])
        assert "replace" in machine.calls
    assert found(tmp_path) == after(after(NOTHING, THREE[0]), THREE[1])


def test_after_a_failed_sync_of_a_name_nothing_is_appended_to_that_file(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with opened(tmp_path, machine.disk) as (wal, _):
        wal.write(THREE[0])
        done(machine)
        machine.fail_at = frozenset({6})
        with pytest.raises(WalError):
            wal.write(persist(4, snapshot=Snapshot(2, 1, b"image")))
        assert done(machine)[-2:] == ["replace", "sync_directory"]
        machine.fail_at = frozenset()
        wal.write(THREE[1])
        assert "replace" in machine.calls
    assert found(tmp_path) == after(after(NOTHING, THREE[0]), THREE[1])


def test_half_a_record_that_cannot_be_cut_off_is_not_appended_to(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with opened(tmp_path, machine.disk) as (wal, _):
        wal.write(THREE[0])
        done(machine)
        machine.fail_at = frozenset({1, 2})
        with pytest.raises(WalError):
            wal.write(THREE[1])
        assert done(machine) == ["write", "truncate"]
        assert found(tmp_path) == after(NOTHING, THREE[0])


@contextmanager
def file_size_limit(size_bytes: int) -> Generator[None]:
    """A disk that is full: a write is taken up to here, and then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("snapshot", "sizes_bytes"),
    [(None, (200, 160, 10)), (Snapshot(3, 1, b"image"), (120, 50, 10))],
)
def test_a_full_disk_costs_one_write_and_not_what_was_there(
    tmp_path: Path, snapshot: Snapshot | None, sizes_bytes: tuple[int, ...]
) -> None:
    """It is full in the new record (or new file), or before it."""
    before = after(NOTHING, THREE[0])
    change = persist(4, 2, 2, 2, snapshot=snapshot)
    with opened(tmp_path) as (wal, _):
        wal.write(THREE[0])
        size = (tmp_path / FILE).stat().st_size
        for size_bytes in sizes_bytes:
            with file_size_limit(size_bytes), pytest.raises(WalError, match="File too large"):
                wal.write(change)
            assert os.listdir(tmp_path) == [FILE]
            assert (tmp_path / FILE).stat().st_size == size
            assert found(tmp_path) == before
        with pytest.raises(AssertionError):
            wal.write(persist(5))  # As if the failed one counted.
        wal.write(persist(4, 3))
        wal.write(persist(5, snapshot=Snapshot(1, 1, b"")))
    assert found(tmp_path) == Saved(1, "", Snapshot(1, 1, b""), (entry(2), entry(3), entry(4, 3)))


@pytest.mark.parametrize("entries", [0, 3])
def test_a_file_that_is_mostly_dead_is_written_anew(tmp_path: Path, entries: int) -> None:
    changes = [persist(1, *[1] * entries, term=term) for term in range(300)]
    sizes = written(tmp_path, *changes, bytes_max=1000)
    assert 800 < max(sizes) <= 1000
    assert found(tmp_path) == after(NOTHING, changes[-1])


def test_a_file_that_is_alive_grows_on(tmp_path: Path) -> None:
    """To write it anew each time would not make it smaller."""
    machine = Machine(tmp_path)
    with opened(tmp_path, machine.disk, 1000) as (wal, _):
        for first in range(1, 300, 10):
            wal.write(persist(first, *[1] * 10))
    assert (tmp_path / FILE).stat().st_size > 3000
    assert machine.calls.count("replace") == 1


def test_what_is_too_long_for_a_record_is_written_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.storage.wal.RECORD_BYTES_MAX", 1000)
    machine = Machine(tmp_path)
    with opened(tmp_path, machine.disk) as (wal, _):
        wal.write(persist(1))
        done(machine)
        wal.write(persist(1, *[1] * 200))
        assert done(machine)[-3:] == ["sync", "replace", "sync_directory"]
    _, first_records = _read_header((tmp_path / FILE).read_bytes())
    assert first_records == 1 + 4
    assert found(tmp_path) == after(NOTHING, persist(1, *[1] * 200))


def test_an_unfinished_new_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / BESIDE).write_bytes(b"half")
    assert found(tmp_path) is None
    assert os.listdir(tmp_path) == []
    written(tmp_path, *THREE)
    saved = found(tmp_path)
    (tmp_path / BESIDE).write_bytes(b"half")
    assert found(tmp_path) == saved
    assert os.listdir(tmp_path) == [FILE]


def test_the_file_is_its_owners_and_no_childs(tmp_path: Path) -> None:
    written(tmp_path, THREE[0])
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    with opened(tmp_path) as (wal, _):
        for change in (THREE[1], persist(6, snapshot=Snapshot(2, 1, b""))):
            wal.write(change)
            assert wal._fd is not None
            assert not os.get_inheritable(wal._fd)
            assert os.path.samestat(os.fstat(wal._fd), (tmp_path / FILE).stat())


def test_a_disk_that_refuses_at_the_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WalError, match=r"cannot open .*wal: Not a directory"):
        found(tmp_path / "file")
    (tmp_path / FILE).mkdir()
    with pytest.raises(WalError, match=r"cannot open .*wal: Is a directory"):
        found(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        persist(5),
        persist(0),
        persist(6, 1),
        persist(4, snapshot=Snapshot(1, 1, b"")),
        replace(persist(4, 1), first=3),
    ],
)
def test_a_change_that_cannot_follow_is_a_bug_of_the_caller(
    tmp_path: Path, change: Persist
) -> None:
    with opened(tmp_path) as (wal, _):
        wal.write(persist(3, 1, snapshot=Snapshot(2, 1, b"")))
        with pytest.raises(AssertionError):
            wal.write(change)
        wal.close()
        with pytest.raises(AssertionError, match="closed"):
            wal.write(persist(4))
    assert found(tmp_path) == Saved(1, "", Snapshot(2, 1, b""), (entry(3),))
