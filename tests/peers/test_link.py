"""One connection: any cut of the bytes, any length, a peer that misbehaves or stops reading."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers import link as link_module
from peers.link import HELLO_BYTES_MAX, PREFIX, STAGE_BYTES, Frame, Link
from protocols import limits, wire
from protocols.entries import LogEntry, Run
from protocols.ids import PeerId
from protocols.messages import Append, Leave, Refused
from tests.peers.link_room import (
    BEATS,
    PEER,
    NoNetwork,
    Recorder,
    connected,
    feed,
    frame,
    state_chunk,
)

# Receiving --------------------------------------------------------------------------------------

SIZES = st.lists(st.sampled_from([1, 2, 1000, STAGE_BYTES - 60, STAGE_BYTES, 700_000]), max_size=4)


CUTS = st.lists(st.sampled_from([1, 7, 8, 9, 60, 5000, STAGE_BYTES]), max_size=9)


@settings(max_examples=50, deadline=None)
@given(sizes=SIZES, cuts=CUTS)
def test_chunks_arrive_exactly_however_the_stream_is_cut(sizes: list[int], cuts: list[int]) -> None:
    cuts = [*cuts, 300_000]  # Some progress with each turn.
    payloads = [bytes([n + 1]) * (size - 1) + b"\xff" for n, size in enumerate(sizes)]
    stream = b"".join(frame(state_chunk(len(p)), p) for p in payloads)
    owner = Recorder()
    link = Link(owner, accepted=True)
    link.connection_made(NoNetwork())
    link.become(PEER, bulk=True)
    sent = step = 0
    while sent < len(stream):
        room = link.get_buffer(-1)
        assert len(room), "asyncio ends a connection that has no room for more"
        size = min(len(room), cuts[step % len(cuts)], len(stream) - sent)
        room[:size] = stream[sent : sent + size]
        link.buffer_updated(size)
        sent, step = sent + size, step + 1
    assert owner.payloads == payloads
    assert link.received_bytes == len(stream)


@pytest.mark.asyncio
async def test_messages_and_chunks_arrive_in_order() -> None:
    async with connected() as (_, owner, raw):
        await raw.write(*map(frame, BEATS))
        await owner.until_messages(3)
        assert owner.messages == BEATS


@pytest.mark.asyncio
async def test_a_refused_chunk_is_read_and_dropped_and_the_next_one_arrives() -> None:
    async with connected(bulk=True) as (_, owner, raw):
        owner.refuses = 1
        await raw.write(frame(state_chunk(1 << 20), bytes(1 << 20)), frame(state_chunk(2), b"yz"))
        await owner.until_payload()
        assert owner.payloads == [b"yz"]


@pytest.mark.asyncio
async def test_a_message_longer_than_the_stage_arrives() -> None:
    run = Run(1, "x" * (64 << 10), "", 1, 1, 1, (), (1,), PeerId("alpha.1"))
    long = Append(1, 1, 0, 0, tuple(LogEntry(index, 1, run) for index in range(1, 9)), 0)
    assert len(wire.encode(long)) > STAGE_BYTES
    refusals = [Refused("x" * 1024)] * 300  # More than a stage of them at once.
    async with connected() as (_, owner, raw):
        await raw.write(*map(frame, refusals), frame(long))
        await owner.until_messages(301)
        assert owner.messages == [*refusals, long]


BAD = {
    "a huge head": (False, PREFIX.pack(limits.CONTROL_BYTES_MAX + 1, 0)),
    "a huge head on a bulk connection": (True, PREFIX.pack(limits.CHUNK_HEADER_BYTES_MAX + 1, 1)),
    "a huge payload": (True, PREFIX.pack(20, limits.CHUNK_BYTES_MAX + 1)),
    "all ones": (False, b"\xff" * 64),
    "no message": (False, PREFIX.pack(0, 0)),
    "no msgpack": (False, PREFIX.pack(3, 0) + b"\xc1\xc1\xc1"),
    "a chunk on a control connection": (False, frame(state_chunk(1), b"x")),
    "a message on a bulk connection": (True, frame(BEATS[0])),
    "a message with payload": (False, frame(BEATS[0], b"x")),
    "a chunk without payload": (True, frame(state_chunk(1))),
    "a hello too long": (None, PREFIX.pack(HELLO_BYTES_MAX + 1, 0)),
    "a chunk without hello": (None, frame(state_chunk(1), b"x")),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", BAD)
async def test_bytes_that_are_no_frame_end_the_connection(kind: str) -> None:
    bulk, garbage = BAD[kind]
    async with connected(bulk=bulk) as (link, owner, raw):
        await raw.write(garbage, b"\0" * 1000)
        assert "no message" in await owner.until_closed()
        assert owner.messages == []
        assert owner.payloads == []
        assert not link.is_open


@pytest.mark.asyncio
async def test_what_follows_a_close_is_not_delivered() -> None:
    async with connected() as (_, owner, raw):
        owner.stops_at = BEATS[0]
        await raw.write(*map(frame, BEATS))
        assert await owner.until_closed() == "enough"
        assert owner.messages == BEATS[:1]


@pytest.mark.asyncio
async def test_a_chunk_that_ends_after_a_close_is_not_delivered() -> None:
    """TLS delivers what was under way while it shuts down."""
    owner = Recorder()
    link = Link(owner, accepted=True)
    link.connection_made(NoNetwork())
    link.become(PEER, bulk=True)
    feed(link, frame(state_chunk(5), b"12345")[:-1])
    link.close("enough")
    feed(link, b"5")
    assert owner.payloads == []
    link.connection_lost(None)
    assert owner.why == ["enough"]


def test_what_comes_after_a_close_is_written_nowhere() -> None:
    """Its place may belong to another connection by then, or to another payload."""

    async def scenario() -> bytes:
        owner = Recorder()
        link = Link(owner, accepted=True)
        link.connection_made(NoNetwork())
        link.become(PEER, bulk=True)
        chunk = frame(state_chunk(10_000), bytes(10_000))
        feed(link, chunk[:-5000])
        link.close("enough")
        for _ in range(3):
            feed(link, b"\xff" * 1000)
        link.connection_lost(None)
        return bytes(owner._place)

    assert asyncio.run(scenario()) == bytes(10_000)


@pytest.mark.asyncio
async def test_a_paused_link_delivers_nothing_until_it_is_resumed() -> None:
    async with connected() as (link, owner, raw):
        owner.pauses_at = BEATS[0]
        await raw.write(*map(frame, BEATS[:2]))
        await owner.until_messages(1)
        await raw.write(frame(BEATS[2]))
        await asyncio.sleep(0)
        assert owner.messages == BEATS[:1]
        link.resume()
        await owner.until_messages(3)
        assert owner.messages == BEATS


# Sending ----------------------------------------------------------------------------------------


def source(frames: Iterable[Frame]) -> Callable[[], Frame | None]:
    """What a link is fed from: these, and then nothing for now."""
    return partial(next, iter(frames), None)


def endless(payload: bytes, made: list[int]) -> Iterator[Frame]:
    while True:
        made.append(1)
        yield state_chunk(len(payload)), payload


@pytest.mark.asyncio
async def test_what_is_sent_is_what_arrives() -> None:
    payload = bytes(range(256)) * 4096
    async with connected(bulk=True) as (link, _, raw):
        wanted = frame(state_chunk(len(payload)), payload) * 3
        link.feed_from(source([(state_chunk(len(payload)), memoryview(payload))] * 3))
        assert await raw.read(len(wanted)) == wanted
        assert link.sent_bytes == len(wanted)


@pytest.mark.asyncio
async def test_a_source_that_has_nothing_for_now_is_asked_again_when_it_is_woken() -> None:
    frames: deque[Frame] = deque()
    one, other = b"1234", b"56789012"
    async with connected(bulk=True) as (link, _, raw):
        link.feed_from(lambda: frames.popleft() if frames else None)
        for payload in (one, other):
            frames.append((state_chunk(len(payload)), payload))
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(frames) == 1, "nobody asks without being woken"
            link.wake()
            assert await raw.read(len(frame(state_chunk(len(payload)), payload))) == frame(
                state_chunk(len(payload)), payload
            )


@pytest.mark.asyncio
async def test_control_goes_before_what_a_source_has() -> None:
    async with connected() as (link, _, raw):
        asked: list[Frame] = [(BEATS[2], b"")]
        link.hold()
        link.feed_from(lambda: asked.pop() if asked else None)
        for beat in BEATS[:2]:
            link.send(beat)
        link.held = False
        link.wake()
        wanted = b"".join(map(frame, BEATS))
        assert await raw.read(len(wanted)) == wanted


@pytest.mark.asyncio
async def test_a_peer_that_does_not_read_holds_back_what_is_made() -> None:
    made: list[int] = []
    async with connected(bulk=True) as (link, _, raw):
        link.feed_from(source(endless(bytes(1 << 20), made)))
        for _ in range(20):
            await asyncio.sleep(0)
            link.wake()
        before = len(made)
        assert 2 <= before <= 24, "the kernel's buffers, and 2 MiB of ours"
        assert link.congested
        await raw.read(before << 20)
        assert len(made) > before, "there is room again"


@pytest.mark.asyncio
async def test_a_link_that_is_closed_asks_for_nothing_more() -> None:
    made: list[int] = []
    async with connected(bulk=True) as (link, owner, raw):
        link.close("enough")
        link.feed_from(source(endless(bytes(1000), made)))
        link.wake()
        assert await raw.read_all() == b""
        await owner.until_closed()
        link.wake()
        assert made == []


@pytest.mark.asyncio
async def test_a_full_control_outbox_says_so_and_the_rest_arrives_in_order() -> None:
    leaves = [Leave(f"{n:4}" + "x" * 1000) for n in range(20_000)]
    async with connected() as (link, _, raw):
        sent = [leave for leave in leaves if link.send(leave)]
        assert 4096 <= len(sent) < len(leaves)
        wanted = b"".join(map(frame, sent))
        assert await raw.read(len(wanted)) == wanted
        assert link.send(leaves[-1]), "there is room again"


@pytest.mark.asyncio
async def test_unsent_bytes_count_what_our_kernel_alone_has() -> None:
    async with connected(bulk=True, window_bytes=4096) as (link, _, raw):
        link.feed_from(source([(state_chunk(1 << 17), bytes(1 << 17))]))
        assert link._transport is not None
        async with asyncio.timeout(10):
            while link._transport.get_write_buffer_size():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert link.unsent_bytes > 0
        await raw.read(link.sent_bytes)
        async with asyncio.timeout(10):
            while link.unsent_bytes:  # noqa: ASYNC110  Nobody tells of an acknowledgement.
                await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_a_held_link_sends_nothing_more() -> None:
    async with connected() as (link, _, raw):
        link.send(BEATS[0])
        link.hold()
        link.send(BEATS[1])
        link.close("done")
        assert await raw.read_all() == frame(BEATS[0])


# Ending -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_was_written_before_a_close_arrives() -> None:
    async with connected() as (link, owner, raw):
        link.send(Refused("no"))
        link.close("refused")
        link.send(BEATS[0])
        assert await raw.read_all() == frame(Refused("no"))
        assert await owner.until_closed() == "refused"


@pytest.mark.asyncio
@pytest.mark.parametrize("ends", ["we", "they"])
async def test_a_close_does_not_wait_for_a_peer_that_stopped_reading(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "LINGER_S", 0.05)
    async with connected(bulk=True) as (link, owner, raw):
        link.feed_from(source(endless(bytes(1 << 20), [])))
        if ends == "we":
            link.close("too slow")
        else:
            raw.raw.shutdown(socket.SHUT_WR)
        await owner.until_closed()
        assert len(owner.why) == 1


@pytest.mark.asyncio
async def test_the_end_of_the_stream_is_told_once() -> None:
    async with connected() as (link, owner, raw):
        raw.raw.close()
        assert await owner.until_closed() == "end of stream"
        link.close("again")
        link.abort("again")
        assert link.send(BEATS[0]), "nobody waits for it: the owner was told"
    assert owner.why == ["end of stream"]
