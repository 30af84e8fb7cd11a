"""What the core must not forget is written in order; a disk that fails, fails all that waits."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from peers.storage.wal import SYSTEM, Wal
from peers.storage.wal_writer import LOG_THREAD, WalWriter
from protocols.interface.commands import Persist
from protocols.interface.events import Persisted, PersistFailed
from protocols.messages.persisted import Saved
from tests.peers.wal_room import found, persist


class Disk:
    """Takes nothing before `gate` is set; then fails as many writes as `failures` says."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0
        self.threads: set[int] = set()

    def write(self, fd: int, data: memoryview) -> int:
        assert self.gate.wait(20)
        self.threads.add(threading.get_ident())
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data)


class Desk:
    """A scribe that runs, and what it said."""

    def __init__(self, wal: Wal, disk: Disk) -> None:
        self.disk = disk
        self.said: asyncio.Queue[Persisted | PersistFailed] = asyncio.Queue()
        self.wal_writer = WalWriter(wal, self.said.put_nowait)

    async def hears(self) -> Persisted | PersistFailed:
        return await asyncio.wait_for(self.said.get(), 20)


@asynccontextmanager
async def desk(directory: Path) -> AsyncGenerator[Desk]:
    disk = Disk()
    wal, _ = Wal.open(directory, disk=replace(SYSTEM, write=disk.write))
    made = Desk(wal, disk)
    task = asyncio.create_task(made.wal_writer.run())
    try:
        yield made
        made.wal_writer.stop()
        await asyncio.wait_for(asyncio.shield(task), 20)
        assert made.said.empty(), "every write has one answer"
    finally:
        disk.gate.set()
        task.cancel()
        await asyncio.wait({task})
        wal.close()


def thread_names() -> list[str]:
    return [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]


def numbered(number: int, first: int, *terms: int, term: int = 1) -> Persist:
    return replace(persist(first, *terms, term=term), write_number=number)


def saved(directory: Path) -> tuple[int, list[int]]:
    """(term, terms of the entries) that a next life would find."""
    state = found(directory)
    assert isinstance(state, Saved)
    return state.term, [entry.term for entry in state.entries]


@pytest.mark.asyncio
async def test_writes_are_answered_in_order_and_only_when_they_are_safe(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        for number in (1, 2, 3):
            at.wal_writer.write(numbered(number, number, 1))
            assert await at.hears() == Persisted(number)
            assert saved(tmp_path) == (1, [1] * number)
    assert threading.get_ident() not in at.disk.threads  # The loop goes on meanwhile.


@pytest.mark.asyncio
async def test_the_kernels_tools_name_the_thread_that_writes(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.wal_writer.write(numbered(1, 1, 1))
        assert await at.hears() == Persisted(1)
        assert thread_names().count(f"{LOG_THREAD}\n") == 1


@pytest.mark.asyncio
async def test_stopping_waits_for_what_was_handed_over(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.disk.gate.clear()
        for number in (1, 2, 3):
            at.wal_writer.write(numbered(number, number, 1))
        at.wal_writer.stop()
        assert at.said.empty()
        at.disk.gate.set()
        assert [await at.hears() for _ in range(3)] == [Persisted(n) for n in (1, 2, 3)]
    assert saved(tmp_path) == (1, [1, 1, 1])


@pytest.mark.asyncio
async def test_a_disk_that_fails_fails_everything_that_waits_behind(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.wal_writer.write(numbered(1, 1, 1))
        assert await at.hears() == Persisted(1)
        at.disk.gate.clear()
        at.disk.failures = 1
        for number in (2, 3, 4):
            at.wal_writer.write(numbered(number, number, 1))
        at.disk.gate.set()
        for number in (2, 3, 4):
            failed = await at.hears()
            assert isinstance(failed, PersistFailed)
            assert failed.write_number == number
            assert "No space left on device" in failed.why
        assert saved(tmp_path) == (1, [1])
        # The core hands all of it over again, and there is room by now.
        at.wal_writer.write(replace(numbered(5, 2, 1, 1, 1), failures=1))
        assert await at.hears() == Persisted(5)
    assert saved(tmp_path) == (1, [1] * 4)


@pytest.mark.asyncio
async def test_what_builds_on_a_failed_write_fails_too_though_it_came_later(
    tmp_path: Path,
) -> None:
    """The core takes events in turn: it hands over more before it hears of the failure."""
    async with desk(tmp_path) as at:
        at.wal_writer.write(numbered(1, 1, 1, 1, 1))
        assert await at.hears() == Persisted(1)
        at.disk.failures = 1
        at.wal_writer.write(numbered(2, 2, 2, 2, term=2))
        failed = await at.hears()
        assert isinstance(failed, PersistFailed)
        assert failed.write_number == 2
        # In the core's inbox, and not read yet; what it says now takes write 2 as written.
        at.wal_writer.write(numbered(3, 4, 2, term=2))
        said = await at.hears()
        assert saved(tmp_path) == (1, [1, 1, 1]), "no mixture of two leaders' logs"
        assert isinstance(said, PersistFailed)
        assert said.write_number == 3


@pytest.mark.asyncio
async def test_a_stop_in_the_middle_of_a_failure_ends_it(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.disk.gate.clear()
        at.disk.failures = 1
        for number in (1, 2):
            at.wal_writer.write(numbered(number, number, 1))
        at.wal_writer.stop()
        at.disk.gate.set()
        said = [await at.hears() for _ in range(2)]
    assert [type(one) for one in said] == [PersistFailed] * 2
    assert found(tmp_path) is None
