"""One bulk connection on a real socket: exact bytes, back-pressure, and how it ends."""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator

import pytest

from peers.connections import bulk as module
from peers.connections.bulk import PADDING, SEND_BYTES_MAX, TURN_S_MAX
from peers.connections.frames import Frame, PlainWriter
from peers.sockets.options import UNSENT_BYTES
from protocols.messages.peer import Chunk
from protocols.types import limits
from tests.peers.bulk_room import connected, endless, frames, pair, read_no_more, source, stream
from tests.peers.chunk_room import payloads_of

MIB = 1 << 20


# Both ways --------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("sealed", [False, True])
async def test_what_one_sends_is_what_the_other_gets(*, sealed: bool) -> None:
    payloads = payloads_of([1, MIB, 70_000, MIB, 3, MIB, MIB, MIB])
    async with pair(sealed=sealed) as (one, other, owner):
        one.feed_from(source(frames(*payloads)))
        await owner.until(lambda: len(owner.payloads) == len(payloads))
        assert owner.payloads == payloads
        assert one.sent_bytes == other.received_bytes > sum(map(len, payloads))


@pytest.mark.asyncio
async def test_payload_counts_as_it_is_sent_and_when_all_of_it_has_come() -> None:
    """A frame that the end cuts off counts with its sender as far as it went."""
    half = MIB // 2
    async with connected(window_bytes=4096) as (bulk, owner, raw):
        owner.refuses = 1
        await raw.write(stream(bytes(1000), bytes(2000)), stream(bytes(MIB))[:half])
        await owner.until(lambda: len(owner.given) == MIB)
        assert owner.came == [(1000, False), (2000, True)]
        made: list[int] = []
        large = 8 * MIB  # More than the kernel's buffers hold: the end cuts off a frame.
        bulk.feed_from(source(endless(bytes(large), made)))
        for _ in range(100):
            await asyncio.sleep(0)
        bulk.close("enough")
        heads = len(made) * (len(stream(bytes(large))) - large)
        assert owner.sent_bytes == bulk.sent_bytes - heads < len(made) * large
        assert len(owner.came) == 2


@pytest.mark.asyncio
async def test_who_has_other_keys_is_shut_out_with_a_reason() -> None:
    async with pair(sealed=True) as (one, other, owner):
        assert other.is_open
        one.outgoing.writer = PlainWriter()
        one.feed_from(source(frames(bytes(MIB))))
        await owner.until(lambda: owner.why)
        assert "does not open" in owner.why[0]
        assert owner.payloads == []


# Receiving --------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_bytes_that_are_no_chunks_end_the_connection() -> None:
    async with connected() as (bulk, owner, raw):
        await raw.write(stream(b"1234"), b"\xff" * 1000)
        await owner.until(lambda: owner.why)
        assert "no chunks" in owner.why[0]
        assert owner.payloads == [b"1234"]
        assert not bulk.is_open


@pytest.mark.asyncio
async def test_what_follows_a_close_is_not_delivered() -> None:
    async with connected() as (bulk, owner, raw):
        owner.worked = lambda _: bulk.close("enough")
        await raw.write(stream(b"1", b"2", b"3"))
        await owner.until(lambda: owner.why)
        assert owner.payloads == [b"1"]


@pytest.mark.asyncio
async def test_what_comes_after_a_close_is_written_nowhere() -> None:
    """Its place may belong to another connection by then, or to another payload."""
    async with connected() as (bulk, owner, raw):
        whole = stream(b"x" * MIB)
        await raw.write(whole[: MIB // 2])
        await owner.until(lambda: len(owner.given))
        bulk.close("enough")
        before = bytes(owner.given)
        await owner.until(lambda: owner.why)
        assert before.count(b"x") < MIB
        assert bytes(owner.given) == before
        assert owner.payloads == []


# Sending ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_source_that_has_nothing_for_now_is_asked_again_when_it_is_woken() -> None:
    waiting: deque[Frame] = deque()
    async with connected() as (bulk, _, raw):
        bulk.feed_from(lambda: waiting.popleft() if waiting else None)
        for payload in (b"1234", b"56789012"):
            waiting.extend(frames(payload))
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(waiting) == 1, "nobody asks without being woken"
            bulk.wake()
            assert await raw.read(len(stream(payload))) == stream(payload)


@pytest.mark.asyncio
async def test_a_source_may_wake_the_connection_that_asks_it() -> None:
    """A sum grows while a contribution is encoded: frames must not get into each other."""
    async with connected() as (bulk, _, raw):
        left = frames(b"1" * 9, b"2" * 9, b"3" * 9)

        def next_frame() -> Frame | None:
            frame = left.pop(0) if left else None
            bulk.wake()
            return frame

        bulk.feed_from(next_frame)
        wanted = stream(b"1" * 9, b"2" * 9, b"3" * 9)
        assert await raw.read(len(wanted)) == wanted


@pytest.mark.asyncio
async def test_a_peer_that_does_not_read_holds_back_what_is_made() -> None:
    made: list[int] = []
    async with connected() as (bulk, owner, raw):
        bulk.feed_from(source(endless(bytes(MIB), made, owner.news)))
        for _ in range(100):
            await asyncio.sleep(0)
            bulk.wake()
        before = len(made)
        assert bulk.congested
        assert before <= 40, "the kernel's buffers, and one frame of ours"
        assert bulk.sent_bytes > (before - 1) * MIB
        await raw.read(before * MIB)
        await owner.until(lambda: len(made) > before)  # There is room again.


@pytest.mark.asyncio
async def test_others_have_their_turn_while_much_is_sent() -> None:
    async with pair(sealed=False) as (one, _, owner):
        one.feed_from(source(frames(*[bytes(MIB)] * 40)))
        assert one.sent_bytes <= SEND_BYTES_MAX + MIB
        turns = 0
        while len(owner.payloads) < 40:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10


@pytest.mark.asyncio
@pytest.mark.parametrize("slow", ["sender", "receiver"])
async def test_others_have_their_turn_where_small_frames_take_long(slow: str) -> None:
    """Whether it is to make them, or what follows from each."""
    turns, seen = [0], list[int]()

    def work(_: object = None) -> None:
        seen.append(turns[0])
        until = time.monotonic() + TURN_S_MAX
        while time.monotonic() < until:
            pass

    def worked(these: Iterable[Frame]) -> Iterator[Frame]:
        for one in these:
            if slow == "sender":
                work()
            yield one

    payloads = [bytes(64 << 10)] * 6
    async with pair(sealed=False) as (one, _, owner):
        if slow == "receiver":
            owner.worked = work
        one.feed_from(source(worked(frames(*payloads))))
        async with asyncio.timeout(10):
            while len(owner.payloads) < len(payloads):
                turns[0] += 1
                await asyncio.sleep(0)
        assert len(seen) == len(payloads)
        assert len(set(seen)) == len(payloads), "two in one turn"


@pytest.mark.asyncio
async def test_one_that_is_closed_asks_for_nothing_more() -> None:
    made: list[int] = []
    async with connected() as (bulk, owner, raw):
        bulk.close("enough")
        bulk.feed_from(source(endless(bytes(1000), made)))
        bulk.wake()
        assert await raw.read_all() == b""
        await owner.until(lambda: owner.why)
        assert owner.why == ["enough"]
        assert made == []


@pytest.mark.asyncio
async def test_unsent_bytes_count_what_our_kernel_alone_has() -> None:
    async with connected(window_bytes=4096) as (bulk, _, raw):
        bulk.feed_from(source(frames(bytes(1 << 17))))
        assert bulk.unsent_bytes > 0
        await raw.read(len(stream(bytes(1 << 17))))
        async with asyncio.timeout(10):
            while bulk.unsent_bytes:  # noqa: ASYNC110  Nobody tells of an acknowledgement.
                await asyncio.sleep(0.001)
        bulk.close("done")
        assert bulk.unsent_bytes == 0


@pytest.mark.asyncio
async def test_padding_goes_while_there_is_nothing_else_and_the_line_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starting = True

    def said(connection: socket.socket) -> bool:
        return starting

    monkeypatch.setattr(module, "is_starting", said)
    left = frames(b"1" * 9)
    async with pair(sealed=True) as (one, _, owner):
        one.warm(MIB)
        assert one.sent_bytes == 0, "it is fed from nowhere yet"
        one.feed_from(lambda: left.pop(0) if left else None)
        await owner.until(lambda: len(owner.came) == 17)
        sizes = [size for size, _ in owner.came]
        assert sizes == [9, *[len(PADDING)] * 16]
        assert not one.outgoing.warm_up.is_due
        one.warm(64 * MIB)
        await owner.until(lambda: len(owner.came) > 20)
        left += frames(b"2" * 9)
        starting = False
        await owner.until(lambda: owner.payloads == [b"1" * 9, b"2" * 9])
        assert not one.outgoing.warm_up.is_due
        assert one.sent_bytes < 32 * MIB


@pytest.mark.asyncio
async def test_a_line_that_is_known_gets_no_padding() -> None:
    """Nobody says of this connection that it is starting, once something was sent."""
    async with pair(sealed=False) as (one, _, owner):
        one.feed_from(lambda: None)
        one.warm(16 * MIB)
        await owner.until(lambda: not one.outgoing.warm_up.is_due)
        sent_bytes = one.sent_bytes
        assert sent_bytes <= UNSENT_BYTES + 2 * len(PADDING)
        one.warm(16 * MIB)
        assert (one.sent_bytes, one.outgoing.warm_up.is_due) == (sent_bytes, False)


@pytest.mark.asyncio
async def test_one_that_is_held_ends_its_frame_and_begins_no_other() -> None:
    payload = bytes(limits.CHUNK_BYTES_MAX)
    async with connected(window_bytes=4096) as (bulk, _, raw):
        begun: list[Chunk] = []

        def begins(chunk: Chunk) -> None:
            begun.append(chunk)
            bulk.outgoing.held = True

        bulk.outgoing.on_chunk_sent = begins
        bulk.feed_from(source(frames(payload, payload)))
        assert bulk.unsent_bytes > 0
        wanted = stream(payload)
        assert await raw.read(len(wanted)) == wanted
        bulk.wake()
        bulk.close("done")
        assert await raw.read_all() == b""
        assert len(begun) == 1


# Ending -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_end_of_the_stream_is_told_once_and_not_from_within_a_call() -> None:
    async with connected() as (bulk, owner, raw):
        raw.raw.close()
        await owner.until(lambda: owner.why)
        assert owner.why == ["end of stream"]
        bulk.close("again")
        bulk.wake()
    async with connected() as (bulk, owner, _):
        bulk.close("enough")
        assert owner.why == []


@pytest.mark.asyncio
async def test_a_peer_that_is_gone_is_seen_when_something_is_sent() -> None:
    async with connected() as (bulk, owner, raw):
        read_no_more(bulk)
        await raw.write(b"unread")
        raw.raw.close()
        await asyncio.sleep(0.01)
        bulk.feed_from(source(endless(bytes(MIB), [])))
        await owner.until(lambda: owner.why)
