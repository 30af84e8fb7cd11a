"""The local bus: every message arrives, nothing blocks the daemon, strangers get an answer."""

import asyncio
import json
import select
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import zmq

from peers.bus import (
    Bus,
    Contributed,
    Evaluated,
    FromRank,
    Metrics,
    RankBus,
    Ready,
    Result,
    Snapshotted,
    Status,
    Stop,
    ToDaemon,
    ask_daemon,
)
from peers.records import RECORD_BYTES_MAX, LinkError, encode

READY = Ready(rank=0, attempt=1)
FROM_RANK: tuple[FromRank, ...] = (
    READY,
    Contributed(rank=0, attempt=1, fragment=0, generation=1, steps=10, tokens=20),
    Metrics(rank=0, attempt=1, step=3, tokens=4, loss=float("inf"), tokens_per_s=0.5),
    Evaluated(rank=0, attempt=1, loss=2.5, windows=8, sample="Once"),
    Snapshotted(rank=0, attempt=1, directory="d"),
)


def result(generation: int = 1, snapshot: str = "") -> Result:
    return Result(
        fragment=0,
        generation=generation,
        place=0,
        kind="delta",
        version=1,
        inner_step=10,
        boundary_steps=20,
        finish=False,
        evaluate=True,
        snapshot=snapshot,
    )


@contextmanager
def serving() -> Generator[tuple[Bus, str]]:
    """Inside a running loop."""
    with tempfile.TemporaryDirectory(prefix="lc") as directory:
        endpoint = f"ipc://{directory}/bus"
        bus = Bus(endpoint)
        try:
            yield bus, endpoint
        finally:
            bus.close()


@contextmanager
def connected(endpoint: str) -> Generator[RankBus]:
    rank = RankBus(endpoint)
    try:
        yield rank
    finally:
        rank.close()


async def heard(bus: Bus) -> tuple[bytes, ToDaemon | LinkError]:
    return await asyncio.wait_for(bus.receive(), 10)


@pytest.mark.asyncio
async def test_messages_pass_in_both_directions() -> None:
    with serving() as (bus, endpoint), connected(endpoint) as rank:
        rank.send(READY)
        sender, _ = await heard(bus)
        for message in FROM_RANK:
            rank.send(message)
            assert await heard(bus) == (sender, message)
        assert bus.send(sender, result())
        assert await asyncio.to_thread(rank.receive) == result()


@pytest.mark.asyncio
async def test_what_a_send_takes_note_of_is_received() -> None:
    """ZeroMQ's descriptor tells of changes only. Sending takes note of them too, and who then
    waits for the descriptor sleeps on a full mailbox."""
    with serving() as (bus, endpoint), connected(endpoint) as rank:
        rank.send(READY)
        sender, _ = await heard(bus)
        hearing = asyncio.create_task(heard(bus))
        await asyncio.sleep(0.01)
        rank.send(READY)
        assert select.select([bus._fd], [], [], 10)[0]
        time.sleep(0.01)  # noqa: ASYNC251  # ZeroMQ looks at most once a millisecond.
        bus.send(sender, result())
        assert not select.select([bus._fd], [], [], 0)[0], "or this tests nothing"
        assert await hearing == (sender, READY)


@pytest.mark.asyncio
async def test_nothing_is_missed_in_a_flood() -> None:
    count = 3000
    with serving() as (bus, endpoint), connected(endpoint) as rank:

        def chat() -> None:
            for number in range(count):
                rank.send(Ready(rank=number, attempt=0))
                if number % 7 == 0:
                    rank.receive()

        chatting = asyncio.create_task(asyncio.to_thread(chat))
        for number in range(count):
            sender, message = await heard(bus)
            assert message == Ready(rank=number, attempt=0)
            if number % 7 == 0:
                assert bus.send(sender, result())
        await chatting


@pytest.mark.asyncio
async def test_two_ranks_are_told_apart() -> None:
    with serving() as (bus, endpoint), connected(endpoint) as a, connected(endpoint) as b:
        a.send(READY)
        sender_a, _ = await heard(bus)
        b.send(READY)
        sender_b, _ = await heard(bus)
        bus.send(sender_b, result(2))
        bus.send(sender_a, result(1))
        assert await asyncio.to_thread(a.receive) == result(1)
        assert await asyncio.to_thread(b.receive) == result(2)


@pytest.mark.asyncio
async def test_a_client_is_answered() -> None:
    with serving() as (bus, endpoint):
        for question, answer in ((Status(), {"state": "training"}), (Stop(), {"type": "stopping"})):
            asking = asyncio.create_task(
                asyncio.to_thread(ask_daemon, endpoint, question, timeout_s=10)
            )
            sender, message = await heard(bus)
            assert message == question
            assert bus.answer(sender, json.dumps(answer))
            assert await asking == answer


@pytest.mark.asyncio
async def test_a_client_does_not_wait_for_ever() -> None:
    with serving() as (bus, endpoint):
        asking = asyncio.to_thread(ask_daemon, endpoint, Status(), timeout_s=0.1)
        with pytest.raises(LinkError, match="no answer"):
            await asking
        await heard(bus)
        for text in ("not JSON", "[1]"):
            asking = asyncio.create_task(
                asyncio.to_thread(ask_daemon, endpoint, Stop(), timeout_s=10)
            )
            sender, _ = await heard(bus)
            bus.answer(sender, text)
            with pytest.raises(LinkError, match="JSON"):
                await asking


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b"\xc1"], "undecodable"),
        ([b""], "undecodable"),
        ([b"", encode(READY)], "3 frames"),
        ([encode(result())], "unexpected type 'result'"),
        ([encode(READY).replace(b"rank\x00", b"rank\xc2")], "field rank"),
    ],
)
async def test_bad_bytes_are_told_with_their_sender(frames: list[bytes], why: str) -> None:
    with serving() as (bus, endpoint), connected(endpoint) as rank:
        rank.send(READY)
        sender, _ = await heard(bus)
        rank._socket.send_multipart(frames)
        rank.send(READY)
        blamed, error = await heard(bus)
        assert isinstance(error, LinkError)
        assert why in str(error)
        assert blamed == sender
        assert await heard(bus) == (sender, READY), "what follows is heard"


@pytest.mark.asyncio
async def test_an_oversized_message_does_not_arrive() -> None:
    with serving() as (bus, endpoint), connected(endpoint) as bad, connected(endpoint) as good:
        bad._socket.send(bytes(RECORD_BYTES_MAX + 1))
        good.send(READY)
        assert (await heard(bus))[1] == READY
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await bus.receive()
        bad._socket.setsockopt(zmq.LINGER, 0)
        with pytest.raises(LinkError, match="at most"):
            good.send(Evaluated(rank=0, attempt=0, loss=0.0, windows=1, sample="x" * (1 << 20)))


@pytest.mark.asyncio
async def test_a_full_queue_never_blocks_the_daemon() -> None:
    with serving() as (bus, endpoint), connected(endpoint) as rank:
        rank.send(READY)
        sender, _ = await heard(bus)
        started = time.monotonic()
        sent = 0
        while sent < 10_000 and bus.send(sender, result(snapshot="x" * 10_000)):
            sent += 1
        assert 100 < sent < 10_000
        assert time.monotonic() - started < 5
        assert not bus.send(b"nobody", result()), "who is not there is not waited for"


@pytest.mark.asyncio
async def test_metrics_are_dropped_when_the_daemon_is_slow() -> None:
    with serving() as (_, endpoint), connected(endpoint) as rank:
        rank._socket.setsockopt(zmq.LINGER, 0)
        metrics = FROM_RANK[2]
        assert isinstance(metrics, Metrics)
        for _ in range(20_000):
            rank.offer(metrics)


@pytest.mark.asyncio
async def test_an_endpoint_that_cannot_be_is_an_error() -> None:
    with pytest.raises(OSError, match="cannot bind"):
        Bus("ipc:///nonexistent/bus")
