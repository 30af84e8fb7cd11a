"""How an attempt of real processes ends: ranks that die, hang or misbehave cost it, no more."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import peers.ranks.group_memory
from peers.ipc.daemon_socket import Closed
from peers.ipc.messages import NONE, Answer, RankHello, Result, TensorPlace
from peers.processes.supervisor import CommandSpawner, ZygoteSpawner
from peers.ranks.attempt import HangLimits, RankAttempt
from peers.ranks.attempt_runner import AttemptRunner
from peers.ranks.events import (
    GroupLost,
    GroupReady,
    GroupStalled,
    ProgramEnded,
    RankContribution,
    RankMetrics,
    RanksFinished,
    RanksSnapshotted,
)
from peers.ranks.rank_group import RanksFailed

if TYPE_CHECKING:
    from tests.peers.conftest import Running


STEPS = 3
WORDS = 100
"""Of a talkative rank, as in rank_programs.py."""


LAYOUT = (TensorPlace(0, "a", (2,), 0),)
RESULT = Result(fragment=0, place=0, kind="full", version=0, inner_step=0, boundary_steps=9)


def training() -> AttemptRunner:
    """Two ranks on paper."""
    attempt = RankAttempt(
        0, ranks=2, hang_limits=HangLimits(), decide_boundary=lambda _: Answer(fragment=NONE)
    )
    spawner = CommandSpawner(["true"])
    runner = AttemptRunner(attempt, spawner=spawner, on_stall=lambda _: None)
    for rank in (0, 1):
        attempt.hello(RankHello(rank=rank, world_size=2, attempt=0, pid=1))
        attempt.configured(rank)
        attempt.layout(rank, LAYOUT, 1)
    for rank in (0, 1):
        attempt.attached(rank, (0,))
        attempt.ready(rank)
    attempt.result_sent(RESULT)
    return runner


@pytest.mark.parametrize("adopted", [False, True])
def test_a_program_that_started_the_daemon_ends_with_its_first_rank_but_finishes_with_its_last(
    adopted: bool,
) -> None:
    closed, runner = Closed("it closed its connection", ended=True), training()
    runner.closed(1, closed, adopted=adopted)
    assert runner.end.left == adopted
    assert runner.end.why == ("" if adopted else "rank 1: it closed its connection")
    runner = training()
    runner.attempt.result_sent(replace(RESULT, finish=True))
    runner.closed(1, closed, adopted=adopted)
    assert not runner.end.finished, "the other rank is at work yet"
    runner.closed(0, closed, adopted=adopted)
    assert runner.end.finished == adopted, "otherwise their exit statuses tell it"
    runner = training()
    runner.attempt.trains_no_more(1)
    runner.closed(1, closed, adopted=adopted)
    assert (runner.end.left, runner.end.why) == (False, "")
    runner.closed(0, Closed("undecodable record", ended=False), adopted=adopted)
    assert (runner.end.left, runner.end.why) == (False, "rank 0: undecodable record")


@pytest.mark.asyncio
async def test_a_killed_rank_is_replaced_and_its_torn_contribution_is_void(
    running: "Running",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "torn")
    async with running() as owner:
        owner.configure()
        first = await owner.ready()
        owner.post()
        while (torn := await owner.until(RankMetrics)).loss == 0.0:
            pass
        slots = owner.group.slots
        assert slots is not None
        assert torn.rank == 1
        assert slots.contribution(0)[2048:] == b"\x01" * 2048, "it has written, but not told"
        os.kill(first[1].step, signal.SIGKILL)
        assert await owner.until(GroupLost) == GroupLost(0, "rank 1 was killed by signal 9")

        again = await owner.ready(attempt=1)
        assert not slots.all_done(0, 1)
        assert slots.step_of_rank(0) == 0
        assert {metrics.step for metrics in again.values()}.isdisjoint(
            metrics.step for metrics in first.values()
        )
        assert again[0].tokens != first[0].tokens, "another MASTER_PORT"
        owner.post()
        contribution = await owner.until(RankContribution)
        assert contribution.generation == 1, "the dead attempt's never counted"
        assert slots.contribution(0) == b"\x10" * 2048 + b"\x11" * 2048
        owner.post()
        assert (await owner.until(RankContribution)).generation == 2
        os.kill(again[0].step, signal.SIGKILL)
        await owner.until(GroupReady)
        owner.post()
        assert (await owner.until(RankContribution)).generation == 3, "generations go on"
        del slots


@pytest.mark.asyncio
@pytest.mark.parametrize("who", ["hung while training", "the daemon is not to blame"])
async def test_a_hung_rank_is_noticed_only_while_it_trains(
    running: "Running", monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    if who == "hung while training":
        monkeypatch.setenv("BEHAVIOUR", "stop")
    async with running(hang_timeout_s=0.5) as owner:
        owner.configure()
        await owner.until(GroupReady)
        owner.post()
        if who == "hung while training":
            lost = await owner.until(GroupLost)
            key = "node.first_step_timeout_s"
            assert (
                lost.why
                == f"rank 1 hangs: it has not made its first step for 0.5 s (at step 0; {key})"
            )
            assert await owner.until(GroupReady) == GroupReady(1)
        else:
            await owner.until(RankContribution)
            with pytest.raises(TimeoutError):  # All wait for a result for as long as it takes.
                await owner.until(GroupLost, within_s=1.0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("exit", "rank 1 ended with code 7"),
        ("raise", "rank 1 ended with code 1"),
        ("layout", "ranks write 1025 elements, their layout has 1024"),
        ("malformed", "rank 1: undecodable record"),
        ("oversized", "rank 1: a frame of 2097152 bytes, at most 1048576"),
        ("early", "rank 1 sends StepMetrics before it is attached"),
        ("close", "rank 1: it closed its connection"),
        ("flagless", "generation 1 of fragment 0 is not whole"),
        ("generation", "rank 1 contributes generation 2 of fragment 0, 1 is next"),
    ],
)
async def test_a_rank_that_misbehaves_ends_its_attempt_only(
    running: "Running", behaviour: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", behaviour)
    async with running() as owner:
        owner.configure()
        if behaviour in {"flagless", "generation"}:
            await owner.until(GroupReady)
            owner.post()
        lost = await owner.until(GroupLost)
        assert lost.attempt == 0
        assert lost.why.startswith(why)
        assert await owner.until(GroupReady) == GroupReady(1)
        owner.post()
        assert await owner.until(RankContribution) == RankContribution(0, 1, STEPS, 300)


@pytest.mark.asyncio
async def test_a_rank_that_says_much_is_heard_out(
    running: "Running", monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only holds up itself, and what it says last counts although it has ended meanwhile."""
    monkeypatch.setenv("BEHAVIOUR", "talkative")
    async with running() as owner:
        owner.configure()
        pids = [metrics.step for metrics in (await owner.ready()).values()]
        owner.post()
        words: list[int] = []
        while isinstance(event := await owner.until((RankMetrics, RankContribution)), RankMetrics):
            words += [event.step] if event.step not in pids else []  # It may be there still.
        assert words == list(range(WORDS))
        owner.post(finish=True, snapshot="there")
        while any(state_of(pid) not in {"", "Z"} for pid in pids):
            time.sleep(0.01)  # noqa: ASYNC251  # Both ranks end before the daemon reads a word.
        assert await owner.until((RanksSnapshotted, RanksFinished)) == RanksSnapshotted("there")
        assert await owner.until(RanksFinished) == RanksFinished(0)
        await owner.ended()


@pytest.mark.asyncio
async def test_attempts_are_counted(running: "Running", monkeypatch: pytest.MonkeyPatch) -> None:
    spawner = ZygoteSpawner([], target="rank_programs:no_such_function")
    async with running(restarts_max=1, spawner=spawner) as owner:
        owner.configure()
        for attempt in (0, 1):
            assert (await owner.until(GroupLost)).attempt == attempt
        with pytest.raises(RanksFailed, match=r"2 attempts .* failed in a row: rank . ended with"):
            await owner.ended()


@pytest.mark.asyncio
async def test_a_spawner_that_cannot_start_fails_the_group(running: "Running") -> None:
    spawner = ZygoteSpawner(["no_such_module"], target="x:y")
    async with running(restarts_max=0, spawner=spawner) as owner:
        with pytest.raises(RanksFailed, match="zygote ended with 1"):
            await owner.ended()


@pytest.mark.asyncio
async def test_a_users_own_launcher(running: "Running") -> None:
    spawner = CommandSpawner([sys.executable, "-c", "import rank_programs as p; p.launch()"])
    async with running(spawner=spawner) as owner:
        owner.configure()
        first = await owner.ready()
        owner.post()
        await owner.until(RankContribution)
        os.kill(first[0].step, signal.SIGKILL)
        lost = await owner.until(GroupLost)
        # The launcher still waits for rank 1: there is no exit status yet.
        assert lost.why in {"rank 0: its process has ended", "rank 0: it closed its connection"}
        await owner.until(GroupReady)
        assert state_of(first[1].step) in {"", "Z"}, "the other rank was killed before"
        owner.post()
        await owner.until(RankContribution)
        owner.post(finish=True)
        assert await owner.until(RanksFinished) == RanksFinished(1)
        await owner.ended()


@pytest.mark.asyncio
async def test_a_program_that_ends_by_itself_is_not_started_again(
    running: "Running", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINS", str(2 * STEPS))
    spawner = CommandSpawner([sys.executable, "-c", "import rank_programs as p; p.launch()"])
    async with running(spawner=spawner) as owner:
        owner.configure()
        await owner.ready()
        for generation in (1, 2):
            owner.post()
            contribution = await owner.until((RankContribution, GroupLost, GroupStalled))
            assert contribution == RankContribution(0, generation, STEPS, 300)
        stalled = await owner.until((GroupStalled, GroupLost, ProgramEnded))
        assert stalled == GroupStalled(0, "its program trains no more"), "no peer waits for it"
        assert await owner.until((GroupLost, ProgramEnded)) == ProgramEnded(0)
        assert owner.group.slots is not None, "the node has its state until it has left"


def state_of(pid: int) -> str:
    """One letter, "Z" for a zombie that nobody has reaped yet; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.asyncio
async def test_what_was_contributed_is_told_before_its_ranks_are_lost(
    running: "Running", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although they end before its round would begin."""
    monkeypatch.setenv("BEHAVIOUR", "leave")
    monkeypatch.setattr(peers.ranks.group_memory, "HAND_OVER_S", 60.0)
    async with running(ranks=1) as owner:
        owner.configure()
        await owner.until(GroupReady)
        owner.post()
        told = await owner.until((RankContribution, GroupLost))
        assert told == RankContribution(0, 1, STEPS, STEPS * 100)
        assert (await owner.until(GroupLost)).why == "rank 0 ended with code 7"


@pytest.mark.asyncio
async def test_what_was_contributed_is_told_nobody_when_the_node_has_ended(
    running: "Running", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.ranks.group_memory, "HAND_OVER_S", 0.3)
    async with running() as owner:
        owner.configure()
        await owner.until(GroupReady)
        owner.post()
        async with asyncio.timeout(10):
            # No message tells that, which is the point.
            while not owner.group._handed._waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert owner.task is not None
        owner.task.cancel()
        await asyncio.wait({owner.task})
        with pytest.raises(TimeoutError):
            await owner.until(RankContribution, within_s=0.5)
