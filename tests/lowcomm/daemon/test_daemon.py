"""Who a daemon is when it starts again, and what its core learns of its checkpoints.

Whole lives of daemons are in tests/cluster.
"""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lowcomm.checkpoints.checkpoint import read_checkpoint
from lowcomm.config.schema import FileConfig, NodeConfig, RunConfig
from lowcomm.daemon.daemon import Daemon
from lowcomm.startup.identity import read_record
from lowcomm.startup.start_options import StartOptions
from peers.sockets.listener import listen
from peers.storage.wal import FILE, WalError
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.types.ids import PeerId, Stamp
from tests.lowcomm.replicas import kept as write_checkpoint

ALPHA = PeerId("alpha.1f0c9a2e")
CONFIG = FileConfig(run=RunConfig(), node=NodeConfig(name="alpha"))
AGAIN = StartOptions(kind="again", address="127.0.0.1:1")


@contextmanager
def daemon(directory: Path, start: StartOptions = AGAIN) -> Generator[Daemon]:
    """One that does not run; its directory is free again at the end."""
    listening = listen("127.0.0.1:0")
    made = Daemon(CONFIG, directory=directory, start=start, listening=listening)
    try:
        yield made
    finally:
        made.context.checkpoint_schedule.close()
        made.context.event_log.close()
        made._wal.close()
        made._directory.close()
        listening.close()


def promise(made: Daemon) -> None:
    """It votes, and its log holds an entry."""
    entry = e.LogEntry(1, 1, e.Elected(made.context.core.me.peer))
    made._wal.write(c.Persist(1, 4, made.context.core.me.peer, 1, (entry,), None))


def test_a_new_peer_has_a_name_that_nobody_had(tmp_path: Path) -> None:
    with daemon(tmp_path / "a") as one, daemon(tmp_path / "b") as other:
        assert one.context.core.me.name == other.context.core.me.name == "alpha"
        assert one.context.core.me.peer != other.context.core.me.peer
        assert one.context.core.me.incarnation == 1


def test_with_its_log_it_is_the_same_peer_in_its_next_life(tmp_path: Path) -> None:
    with daemon(tmp_path) as first:
        first._record.remember_run(77)
        promise(first)
    with daemon(tmp_path) as second:
        assert second.context.core.me.peer == first.context.core.me.peer
        assert second.context.core.me.incarnation == 2
        assert second._record.record.run == 77
        state = second.context.core.raft.election.state
        assert (state.term, state.vote) == (4, first.context.core.me.peer)
        assert second.context.core.raft.log.last_index == 1


def test_without_its_log_it_is_another_peer_that_promised_nothing(tmp_path: Path) -> None:
    """Its old name may have voted, and acknowledged entries that this disk does not have."""
    with daemon(tmp_path) as first:
        first._record.remember_run(77)
        promise(first)
    (tmp_path / FILE).unlink()
    with daemon(tmp_path) as second:
        assert second.context.core.me.peer != first.context.core.me.peer
        assert second.context.core.me.incarnation == 1
        assert second._record.record.run == 0
        assert second.context.core.raft.term == 0
        second._note_start()
        record = read_record(tmp_path)
        assert record is not None
        assert record.peer == second.context.core.me.peer


def test_before_it_took_part_in_a_run_it_promised_nothing_and_stays_who_it_is(
    tmp_path: Path,
) -> None:
    with daemon(tmp_path) as first:
        first._note_start()
    with daemon(tmp_path) as second:
        assert second.context.core.me.peer == first.context.core.me.peer
        assert second.context.core.me.incarnation == 2


def test_a_damaged_log_is_refused_in_one_line(tmp_path: Path) -> None:
    with daemon(tmp_path) as first:
        first._record.remember_run(77)
        promise(first)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(b"x" + whole[1:])
    listening = listen("127.0.0.1:0")
    try:
        with pytest.raises(WalError, match="no complete checkpoint here, so where others"):
            Daemon(CONFIG, directory=tmp_path, start=AGAIN, listening=listening)
    finally:
        listening.close()


def test_a_daemon_that_starts_again_says_what_it_kept(tmp_path: Path) -> None:
    with daemon(tmp_path) as first:
        first._record.remember_run(77)
        promise(first)
    write_checkpoint(tmp_path / "checkpoints", 4)
    with daemon(tmp_path) as second:
        kept = second.context.core.member_status.kept
        assert kept is not None
        assert [version.round for version in kept.versions] == [4, 4]


def test_the_core_hears_of_every_checkpoint_that_is_complete(tmp_path: Path) -> None:
    """If the others die, the run can only go back to what their survivor says that it has."""
    with daemon(tmp_path) as made:
        write_checkpoint(tmp_path / "checkpoints", 4)
        path = tmp_path / "checkpoints" / "round-000004"
        cut, _, _ = read_checkpoint(path)
        made.context.checkpoint_schedule._written(path, cut)
        told: list[v.Event] = []
        while not made.context.driver._inbox.empty():
            told.append(made.context.driver._inbox.get_nowait())
        kept = [event.kept for event in told if isinstance(event, v.Checkpointed)]
        assert [[version.round for version in each.versions] for each in kept] == [[4, 4]]


@pytest.mark.asyncio
async def test_no_step_is_made_while_the_last_checkpoint_is(tmp_path: Path) -> None:
    """Nobody answered that we leave, say: the core has not stopped, and ranks still train."""
    begun, goes_on, steps = threading.Event(), threading.Event(), list[int]()

    def step() -> None:
        begun.set()
        goes_on.wait(10)
        steps.append(1)

    with daemon(tmp_path) as made:
        driver = asyncio.create_task(made.context.driver.run())
        made.context.driver.compute(step, lambda _: None)
        assert await asyncio.to_thread(begun.wait, 10)
        goes_on.set()
        await made._end_driver(driver)
        assert driver.done()
        assert steps == [1], "the one that was being made is whole"
        made.context.driver.feed(v.StepApplied(Stamp(7, 7, 1, 0, 1, 0), "00"))
        assert not made.context.driver._inbox.empty(), "it was taken at once"
