"""One control connection: any length, a peer that misbehaves or stops reading."""

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.connections import control as link_module
from peers.connections.control import HELLO_BYTES_MAX, STAGE_BYTES, Link
from peers.connections.frames import PREFIX
from protocols.messages.log_entries import LogEntry, Run
from protocols.messages.peer import Append, Leave, Refused
from protocols.types import limits
from protocols.types.ids import PeerId
from protocols.wire import codec
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

LENGTHS = st.lists(st.sampled_from([0, 1, 500, 1024]), max_size=9)
CUTS = st.lists(st.sampled_from([1, 7, 8, 9, 60, 5000]), min_size=1, max_size=9)


@settings(max_examples=50, deadline=None)
@given(lengths=LENGTHS, cuts=CUTS)
def test_messages_arrive_in_order_however_the_stream_is_cut(
    lengths: list[int], cuts: list[int]
) -> None:
    messages = [Leave("x" * length) for length in lengths]
    stream = b"".join(map(frame, messages))
    owner = Recorder()
    link = Link(owner, accepted=True)
    link.connection_made(NoNetwork())
    link.become(PEER)
    sent = step = 0
    while sent < len(stream):
        size = cuts[step % len(cuts)]
        feed(link, stream[sent : sent + size])
        sent, step = sent + size, step + 1
    assert owner.messages == messages
    assert link.received_bytes == len(stream)


def test_bytes_without_a_complete_message_are_told() -> None:
    """They are a sign of life: the rest of a long message may wait for lost packets."""
    owner, stirs = Recorder(), list[int]()
    link = Link(owner, accepted=True)
    link.connection_made(NoNetwork())
    link.become(PEER, lambda: stirs.append(link.received_bytes))
    message = frame(Leave("x" * 100))
    for piece in (message[:5], message[5:90], message[90:] + message[:20], message[20:]):
        feed(link, piece)
    assert stirs == [5, 90]
    assert owner.messages == [Leave("x" * 100)] * 2


@pytest.mark.asyncio
async def test_a_message_longer_than_the_stage_arrives() -> None:
    run = Run(1, "x" * (64 << 10), "", 1, 1, 1, b"", (1,), PeerId("alpha.1"))
    long = Append(1, 1, 0, 0, tuple(LogEntry(index, 1, run) for index in range(1, 9)), 0)
    assert len(codec.encode(long)) > STAGE_BYTES
    refusals = [Refused("x" * 1024)] * 300  # More than a stage of them at once.
    async with connected() as (_, owner, raw):
        await raw.write(*map(frame, refusals), frame(long))
        await owner.until_messages(301)
        assert owner.messages == [*refusals, long]


BAD = {
    "a huge head": (True, PREFIX.pack(limits.CONTROL_BYTES_MAX + 1, 0)),
    "all ones": (True, b"\xff" * 64),
    "no message": (True, PREFIX.pack(0, 0)),
    "no msgpack": (True, PREFIX.pack(3, 0) + b"\xc1\xc1\xc1"),
    "a chunk": (True, frame(state_chunk(1), b"x")),
    "a chunk without payload": (True, frame(state_chunk(1))),
    "a message with payload": (True, frame(BEATS[0], b"x")),
    "a hello too long": (False, PREFIX.pack(HELLO_BYTES_MAX + 1, 0)),
    "a chunk without hello": (False, frame(state_chunk(1), b"x")),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", BAD)
async def test_bytes_that_are_no_frame_end_the_connection(kind: str) -> None:
    introduced, garbage = BAD[kind]
    async with connected(introduced=introduced) as (link, owner, raw):
        await raw.write(garbage, b"\0" * 1000)
        assert "no message" in await owner.until_closed()
        assert owner.messages == []
        assert not link.is_open


@pytest.mark.asyncio
async def test_what_follows_a_close_is_not_delivered() -> None:
    async with connected() as (_, owner, raw):
        owner.stops_at = BEATS[0]
        await raw.write(*map(frame, BEATS))
        assert await owner.until_closed() == "enough"
        assert owner.messages == BEATS[:1]


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


@pytest.mark.asyncio
async def test_a_full_control_outbox_says_so_and_the_rest_arrives_in_order() -> None:
    leaves = [Leave(f"{n:4}" + "x" * 1000) for n in range(20_000)]
    async with connected() as (link, _, raw):
        sent = [leave for leave in leaves if link.send(leave)]
        assert 4096 <= len(sent) < len(leaves)
        wanted = b"".join(map(frame, sent))
        assert await raw.read(len(wanted)) == wanted
        assert link.send(leaves[-1]), "there is room again"


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
    async with connected() as (link, owner, raw):
        while link.send(Leave("x" * 1000)):
            pass
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
