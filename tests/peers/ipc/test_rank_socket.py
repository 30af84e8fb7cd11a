"""The rank's end of its lifeline: it blocks where it may, and knows when the daemon is gone."""

import asyncio
import os
import threading

import pytest

from peers.ipc.messages import NONE, Answer, Configured, RankEvaluated, StepMetrics
from peers.ipc.msgpack_records import LinkError
from tests.peers.lifeline_room import (
    ATTACHED,
    BOUNDARY,
    HELLO,
    heard,
    linked,
    receive,
    serving,
    words,
)


@pytest.mark.asyncio
async def test_a_descriptor_comes_with_its_message() -> None:
    reading, writing = os.pipe()
    with serving() as (server, path), linked(path) as rank:
        rank.send(HELLO)
        link, _ = await heard(server)
        link.send(Configured(run="", node="", corpus=""))
        link.send(ATTACHED, fd=writing)
        os.close(writing)
        receive(rank)
        assert receive(rank) == ATTACHED
        theirs = rank.take_fd()
        assert not os.get_inheritable(theirs)
        os.write(theirs, b"x")
        os.close(theirs)
        assert os.read(reading, 2) == b"x"
        with pytest.raises(LinkError, match="no shared memory"):
            rank.take_fd()
    os.close(reading)


@pytest.mark.asyncio
async def test_a_large_message_passes_whole() -> None:
    large = Configured(run="x" * 900_000, node="", corpus="")
    with serving() as (server, path), linked(path) as rank:
        rank.send(HELLO)
        link, _ = await heard(server)
        link.send(large)
        link.send(Answer(fragment=NONE))
        assert await asyncio.to_thread(receive, rank) == large
        assert await asyncio.to_thread(receive, rank) == Answer(fragment=NONE)


@pytest.mark.asyncio
async def test_the_watcher_sees_the_daemon_go_and_not_ourselves() -> None:
    gone = threading.Event()
    with serving() as (server, path):
        with linked(path) as rank:
            rank.watch(gone.set)
            rank.send(HELLO)
            link, _ = await heard(server)
            link.send(Answer(fragment=1))
            assert not gone.wait(0.05), "it wakes for the end only, not for what is to be read"
            assert receive(rank) == Answer(fragment=1)
        assert not gone.is_set()
        with linked(path) as rank:
            rank.watch(gone.set)
            rank.send(HELLO)
            await heard(server)
            link, _ = await heard(server)
            server.close()
            assert gone.wait(10)


@pytest.mark.asyncio
async def test_what_is_offered_is_dropped_where_there_is_no_room() -> None:
    with serving() as (server, path), linked(path) as rank:
        for step in range(2000):  # The daemon hears nothing: its loop runs this.
            rank.offer(words(step))
        sending = asyncio.create_task(asyncio.to_thread(rank.send, BOUNDARY))
        steps: list[int] = []
        while isinstance(message := (await heard(server))[1], StepMetrics):
            steps.append(message.step)
        await sending
        assert message == BOUNDARY, "what is not offered waits for room"
        assert steps == list(range(len(steps)))
        assert 100 < len(steps) < 2000
        rank.offer(words(7))
        assert (await heard(server))[1] == words(7), "there is room again"


@pytest.mark.asyncio
async def test_what_is_offered_and_fits_in_part_is_sent_whole() -> None:
    large = RankEvaluated(loss=1.0, windows=2, sample="x" * 900_000)
    with serving() as (server, path), linked(path) as rank:
        offering = asyncio.create_task(asyncio.to_thread(rank.offer, large))
        assert (await heard(server))[1] == large
        await offering
        rank.send(BOUNDARY)
        assert (await heard(server))[1] == BOUNDARY


@pytest.mark.asyncio
async def test_nothing_can_be_said_to_a_daemon_that_is_gone() -> None:
    with serving() as (server, path), linked(path) as rank:
        rank.send(HELLO)
        link, _ = await heard(server)
        link.close("enough")
        for say in (rank.send, rank.offer):
            with pytest.raises(LinkError, match="closed the connection"):
                say(words(1))


@pytest.mark.asyncio
async def test_a_forked_child_that_closes_its_copy_ends_no_watch() -> None:
    gone = threading.Event()
    with serving() as (server, path), linked(path) as rank:
        rank.watch(gone.set)
        rank.send(HELLO)
        link, _ = await heard(server)
        child = os.fork()
        if child == 0:
            rank.close()
            os._exit(0)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        assert not gone.is_set()
        link.close("enough")
        assert await asyncio.to_thread(gone.wait, 10)
