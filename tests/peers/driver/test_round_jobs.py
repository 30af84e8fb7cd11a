"""In which order a driver calls its work and its listener: a scripted core, and no connection.

Rounds of real drivers are in test_driver.py; there a wrong order shows by chance, if at all.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lowcomm.numerics.arrays import IN_MEMORY
from peers.driver import Driver
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.core import PeerCore
from protocols.types.ids import Contributor, PeerId, Stamp

BETA = PeerId("beta.0")
STAMP = Stamp(run=1, lineage=2, view=3, fragment=0, round=4, attempt=0)
APPLY = c.ApplyRound(STAMP, (0, 1), counted=True)
RESUME = c.Resume(0, 4, "counted", first=False, finish=False)
SLICE = v.SliceReceived(BETA, STAMP, 0, Contributor(BETA, 1, 1, "ab" * 16))
MADE = v.StepMade(1, 0, "ab" * 16)
TURNS = 50
"""Of the loop: what does not depend on another thread has happened by then."""


class Scripted:
    """A core: to each event it says the commands that the test gave it for that."""

    def __init__(self, log: list[str]) -> None:
        self.stopped = False
        self.deadline = float("inf")
        self.run_state = SimpleNamespace(lineage=2)
        self.answers: dict[type[v.Event], Sequence[c.Command]] = {}
        self._log = log

    def handle(self, event: v.Event, now: float) -> list[c.Command]:
        del now
        self._log.append(type(event).__name__)
        commands = list(self.answers.pop(type(event), ()))
        self.stopped = self.stopped or any(isinstance(each, c.Stop) for each in commands)
        return commands


class Shell:
    """A driver whose neighbours only write down that they were called."""

    arrays = IN_MEMORY

    def __init__(self) -> None:
        self.log: list[str] = []
        self.core = Scripted(self.log)
        self.fits = True
        """There is room in the outboxes."""
        self.told: list[c.Command] = []
        """What concerns the ranks."""
        self.feeds: v.Event | None = None
        """What comes while a Note is handled."""
        itself = cast(Any, self)
        self.driver = Driver(cast(PeerCore, self.core), listener=itself, wal=itself)
        self.driver.use(itself)
        exchange = cast(Any, self.driver.data_plane)
        exchange.work = exchange.states = self
        exchange.parts, exchange.own.seconds = self.parts, self.seconds
        for name in ("begin_encoding", "release", "lineage_changed", "decided", "reduce"):
            setattr(exchange, name, self.noted(name))

    def noted(self, name: str) -> Callable[..., None]:
        def note(*_: object, **__: object) -> None:
            self.log.append(name)

        return note

    # The mesh ---------------------------------------------------------------------------------

    def send(self, peer: PeerId, message: m.Control) -> bool:
        return self.fits

    def drop_session(self, peer: PeerId, why: str) -> None:
        self.log.append("drop")

    def wake(self, peer: PeerId) -> None:
        pass

    # The exchange -----------------------------------------------------------------------------

    def parts(self, stamp: Stamp, count: int) -> tuple[list[bytes], tuple[Contributor, ...]]:
        return [], ()

    def seconds(self, stamp: Stamp) -> None:
        return None

    # The listener -----------------------------------------------------------------------------

    def handle(self, command: c.Command) -> None:
        self.log.append(type(command).__name__)
        if isinstance(command, c.Resume | c.Leased):
            self.told.append(command)
        if isinstance(command, c.Observation) and self.feeds is not None:
            event, self.feeds = self.feeds, None
            self.driver.feed(event)

    def check_run(self, run: e.Run) -> None:
        self.log.append("CheckRun")

    def applied(self, stamp: Stamp, state_digest: str) -> None:
        pass

    # The work ---------------------------------------------------------------------------------

    def apply(self, *_: object) -> str:
        self.log.append("apply")
        return "ab" * 16

    def settle(self, fragment: int) -> None:
        self.log.append("settle")

    def state_bytes(self, fragment: int) -> int:
        return 0

    # What a test does -------------------------------------------------------------------------

    def says(self, kind: type[v.Event], *commands: c.Command) -> None:
        self.core.answers[kind] = commands

    async def until(self, *names: str) -> list[str]:
        """All that happened, once all of these have."""
        async with asyncio.timeout(10):
            for _ in iter(lambda: set(names) <= set(self.log), True):
                await asyncio.sleep(0)
        return self.log

    async def waits(self) -> None:
        """It waits for an event."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert self.driver._waiting


@asynccontextmanager
async def running() -> AsyncGenerator[Shell]:
    shell = Shell()
    task = asyncio.create_task(shell.driver.run())
    try:
        await shell.waits()
        yield shell
    finally:
        if not task.done():
            shell.says(v.LeaveRequested, c.Stop("the test is over", "left"))
            shell.driver.feed(v.LeaveRequested("over"))
        async with asyncio.timeout(10):
            await task


@pytest.mark.asyncio
async def test_ranks_go_on_after_the_step_and_contribute_after_that() -> None:
    async with running() as shell:
        shell.says(v.TrainersReady, APPLY, RESUME, c.Leased(()), c.Encode(0, 5))
        shell.driver.feed(v.TrainersReady())
        log = await shell.until("begin_encoding")
        order = [each for each in log if each in ("apply", "Resume", "Leased", "begin_encoding")]
        assert order == ["apply", "Resume", "Leased", "begin_encoding"]


@pytest.mark.asyncio
async def test_new_ranks_do_not_get_a_result_that_was_decided_for_lost_ones() -> None:
    """New ranks may be ready before the job's turn comes: it answers what the lost ones did."""
    async with running() as shell:
        after = c.Resume(0, 4, "anew", first=False, finish=False)
        shell.says(v.TrainersAble, APPLY, RESUME)
        shell.says(v.TrainersReady, after)
        for event in (v.TrainersAble(), v.TrainersLost("signal 9"), v.TrainersReady()):
            shell.driver.feed(event)
        await shell.until("apply", "Resume")
        await shell.waits()
        assert shell.told == [after]


@pytest.mark.asyncio
async def test_a_result_decided_while_the_loss_waits_in_the_inbox_is_for_nobody() -> None:
    async with running() as shell:
        shell.says(v.TrainersAble, RESUME, c.Leased(()))
        shell.driver.feed(v.TrainersAble())
        shell.driver.feed(v.TrainersLost("signal 9"))
        await shell.until("Leased")
        assert shell.told == [c.Leased(())]


@pytest.mark.asyncio
async def test_memory_of_a_round_is_given_back_after_what_reads_it() -> None:
    async with running() as shell:
        shell.says(v.TrainersReady, APPLY, c.ReleaseRound(0, 4))
        shell.driver.feed(v.TrainersReady())
        log = await shell.until("release")
        order = [each for each in log if each in ("apply", "settle", "release")]
        assert order == ["apply", "settle", "release"]


@pytest.mark.asyncio
async def test_what_is_put_off_is_released_before_the_next_contribution_is_begun() -> None:
    async with running() as shell:
        shell.says(v.TrainersReady, c.ReleaseRound(0, 4), c.Encode(0, 5))
        shell.driver.feed(v.TrainersReady())
        log = await shell.until("begin_encoding")
        assert [each for each in log if each != "TrainersReady"] == [
            "settle",
            "release",
            "begin_encoding",
        ]


@pytest.mark.asyncio
async def test_what_was_begun_before_a_restore_is_of_the_branch_that_it_ends() -> None:
    async with running() as shell:
        restored = c.Applied(9, e.Elected(BETA), lineage=7)
        shell.says(v.TrainersReady, APPLY, c.Encode(0, 5), restored, c.Encode(0, 4))
        shell.driver.feed(v.TrainersReady())
        await shell.until("apply", "lineage_changed")
        await shell.waits()
        order = [
            each for each in shell.log if each in ("apply", "begin_encoding", "lineage_changed")
        ]
        assert order == ["apply", "begin_encoding", "lineage_changed", "begin_encoding"]


@pytest.mark.asyncio
async def test_no_event_is_taken_before_the_commands_of_the_one_before_are_done() -> None:
    async with running() as shell:
        note = c.Observation("test", "")
        shell.says(
            v.TrainersReady, note, c.CheckRun(cast(Any, None)), c.ReducePart(STAMP, 0, 0, 1, ())
        )
        shell.feeds = MADE
        shell.driver.feed(v.TrainersReady())
        log = await shell.until("StepMade")
        assert log == ["TrainersReady", "Observation", "CheckRun", "reduce", "StepMade"]


@pytest.mark.asyncio
async def test_a_step_s_event_does_not_overtake_what_came_before_it() -> None:
    async with running() as shell:
        shell.driver.feed(v.TrainersReady())
        shell.driver.feed(MADE)
        assert await shell.until("StepMade") == ["TrainersReady", "StepMade"]


@pytest.mark.asyncio
async def test_a_step_s_event_is_taken_at_once_by_a_driver_that_waits() -> None:
    async with running() as shell:
        shell.driver.feed(MADE)
        assert shell.log == ["StepMade"]


@pytest.mark.asyncio
async def test_a_deadline_that_came_nearer_meanwhile_is_not_missed() -> None:
    async with running() as shell:
        shell.core.deadline = 0.0
        shell.driver.feed(MADE)
        shell.core.deadline = float("inf")
        assert await shell.until("DeadlineReached") == ["StepMade", "DeadlineReached"]


@pytest.mark.asyncio
async def test_the_bytes_of_a_payload_are_there_when_it_is_summed() -> None:
    async with running() as shell:
        shell.says(v.SliceReceived, c.ReducePart(STAMP, 0, 0, 1, ()))
        shell.driver.feed(SLICE)
        assert await shell.until("reduce") == ["SliceReceived", "decided", "reduce"]


@pytest.mark.asyncio
async def test_a_peer_is_gone_after_what_it_said() -> None:
    async with running() as shell:
        shell.driver.mesh_shell.received(BETA, m.Leave("asked to"))
        shell.driver.mesh_shell.disconnected(BETA, "end of stream", lives=False)
        assert await shell.until("PeerDisconnected") == ["MessageReceived", "PeerDisconnected"]


@pytest.mark.asyncio
@pytest.mark.parametrize("fits", [True, False])
async def test_a_peer_whose_outbox_is_full_loses_its_connection(fits: bool) -> None:
    async with running() as shell:
        shell.fits = fits
        shell.says(v.TrainersReady, c.Send(BETA, m.Leave("asked to")), c.Observation("test", ""))
        shell.driver.feed(v.TrainersReady())
        log = await shell.until("Observation")
        assert ("drop" in log) != fits


@pytest.mark.asyncio
async def test_a_driver_that_ends_has_made_the_last_step_and_given_its_result() -> None:
    async with running() as shell:
        shell.says(v.TrainersReady, APPLY, RESUME, c.Stop("all rounds are done", "finished"))
        shell.driver.feed(v.TrainersReady())
        await shell.until("Stop")
    assert shell.log == ["TrainersReady", "Stop", "apply", "Resume"]
