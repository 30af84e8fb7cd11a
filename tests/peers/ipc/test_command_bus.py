"""The local bus: every question arrives, nothing blocks the daemon, strangers get an answer."""

import asyncio
import json
import select
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import zmq

from peers.ipc.command_bus import Bus, Question, Revoke, Status, StopPeer, ask_daemon
from peers.ipc.messages import RankReady
from peers.ipc.msgpack_records import RECORD_BYTES_MAX, LinkError, encode


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
def connected(endpoint: str) -> Generator[zmq.Socket[bytes]]:
    """A client that may say anything."""
    context = zmq.Context(1)
    try:
        client = context.socket(zmq.DEALER)
        client.setsockopt(zmq.RCVTIMEO, 10_000)
        client.connect(endpoint)
        yield client
    finally:
        context.destroy(linger=0)


async def heard(bus: Bus) -> tuple[bytes, Question | StopPeer | LinkError]:
    return await asyncio.wait_for(bus.receive(), 10)


@pytest.mark.asyncio
async def test_what_an_answer_takes_note_of_is_received() -> None:
    """ZeroMQ's descriptor tells of changes only. Sending takes note of them too, and who then
    waits for the descriptor sleeps on a full mailbox."""
    with serving() as (bus, endpoint), connected(endpoint) as client:
        client.send(encode(Status()))
        sender, _ = await heard(bus)
        hearing = asyncio.create_task(heard(bus))
        await asyncio.sleep(0.01)
        client.send(encode(StopPeer()))
        assert select.select([bus._fd], [], [], 10)[0]
        time.sleep(0.01)  # noqa: ASYNC251  # ZeroMQ looks at most once a millisecond.
        bus.answer(sender, "{}")
        assert not select.select([bus._fd], [], [], 0)[0], "or this tests nothing"
        assert await hearing == (sender, StopPeer())


@pytest.mark.asyncio
async def test_nothing_is_missed_in_a_flood() -> None:
    count = 3000
    with serving() as (bus, endpoint), connected(endpoint) as client:

        def chat() -> None:
            for number in range(count):
                client.send(
                    encode(Revoke(what=str(number), token=False, why="", force=False, again=False))
                )
                if number % 7 == 0:
                    assert client.recv() == b"%d" % number

        chatting = asyncio.create_task(asyncio.to_thread(chat))
        for number in range(count):
            sender, message = await heard(bus)
            assert message == Revoke(
                what=str(number), token=False, why="", force=False, again=False
            )
            if number % 7 == 0:
                assert bus.answer(sender, str(number))
        await chatting


@pytest.mark.asyncio
async def test_two_clients_are_told_apart() -> None:
    with serving() as (bus, endpoint), connected(endpoint) as a, connected(endpoint) as b:
        a.send(encode(Status()))
        sender_a, _ = await heard(bus)
        b.send(encode(Status()))
        sender_b, _ = await heard(bus)
        bus.answer(sender_b, "to b")
        bus.answer(sender_a, "to a")
        assert await asyncio.to_thread(a.recv) == b"to a"
        assert await asyncio.to_thread(b.recv) == b"to b"


@pytest.mark.asyncio
async def test_a_client_is_answered() -> None:
    answers: dict[Question | StopPeer, dict[str, object]] = {
        Status(): {"state": "training"},
        StopPeer(): {"type": "stopping"},
        Revoke(what="b.1", token=False, why="stolen", force=True, again=True): {"state": "done"},
    }
    with serving() as (bus, endpoint):
        for question, answer in answers.items():
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
                asyncio.to_thread(ask_daemon, endpoint, StopPeer(), timeout_s=10)
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
        ([b"", encode(Status())], "3 frames"),
        ([encode(RankReady())], "unexpected type 'rankready'"),
        (
            [
                encode(Revoke(what="b", token=False, why="", force=False, again=False)).replace(
                    b"what\xa1b", b"what\x01"
                )
            ],
            "field what",
        ),
    ],
)
async def test_bad_bytes_are_told_with_their_sender(frames: list[bytes], why: str) -> None:
    with serving() as (bus, endpoint), connected(endpoint) as client:
        client.send(encode(Status()))
        sender, _ = await heard(bus)
        client.send_multipart(frames)
        client.send(encode(Status()))
        blamed, error = await heard(bus)
        assert isinstance(error, LinkError)
        assert why in str(error)
        assert blamed == sender
        assert await heard(bus) == (sender, Status()), "what follows is heard"


@pytest.mark.asyncio
async def test_an_oversized_message_does_not_arrive() -> None:
    with serving() as (bus, endpoint), connected(endpoint) as bad, connected(endpoint) as good:
        bad.send(bytes(RECORD_BYTES_MAX + 1))
        good.send(encode(StopPeer()))
        assert (await heard(bus))[1] == StopPeer()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await bus.receive()


@pytest.mark.asyncio
async def test_a_full_queue_never_blocks_the_daemon() -> None:
    with serving() as (bus, endpoint), connected(endpoint) as client:
        client.send(encode(Status()))
        sender, _ = await heard(bus)
        started = time.monotonic()
        sent = 0
        while sent < 10_000 and bus.answer(sender, "x" * 10_000):
            sent += 1
        assert 100 < sent < 10_000
        assert time.monotonic() - started < 5
        assert not bus.answer(b"nobody", "{}"), "who is not there is not waited for"


@pytest.mark.asyncio
async def test_an_endpoint_that_cannot_be_is_an_error() -> None:
    with pytest.raises(OSError, match="cannot bind"):
        Bus("ipc:///nonexistent/bus")
