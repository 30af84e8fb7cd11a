"""Frames in the clear: any cut of the stream, any length, and bytes that are no chunks."""

import pytest
from hypothesis import given, settings

from peers.connections.frames import DROPPED_BYTES, PREFIX, STAGE_BYTES, PlainReader, PlainWriter
from protocols.messages.peer import Leave, Message, ResultChunk
from protocols.types import limits
from protocols.types.ids import Contributor, PeerId, Stamp
from protocols.wire import codec
from protocols.wire.validators import WireError
from tests.peers.chunk_room import CUTS, SIZES, Taker, payloads_of, pour, state_chunk, written


def frame(message: Message, payload: bytes = b"") -> bytes:
    head = codec.encode(message)
    return PREFIX.pack(len(head), len(payload)) + head + payload


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, cuts=CUTS, sent=CUTS)
def test_chunks_arrive_exactly_however_the_stream_is_cut(
    sizes: list[int], cuts: list[int], sent: list[int]
) -> None:
    payloads = payloads_of(sizes)
    stream = b"".join(written(PlainWriter(), [(state_chunk(len(p)), p) for p in payloads], sent))
    assert stream == b"".join(frame(state_chunk(len(p)), p) for p in payloads)
    taker = Taker()
    pour(PlainReader(taker), stream, cuts)
    assert taker.payloads == payloads


def test_payload_is_read_to_its_place_and_sent_from_where_it_lies() -> None:
    payload, taker = memoryview(bytearray(1 << 20)), Taker()
    reader, writer = PlainReader(taker), PlainWriter()
    writer.begin_frame(state_chunk(1 << 20), payload)
    head, body = writer.pending()
    assert body is payload
    pour(reader, bytes(head))
    place, after = reader.room()
    place[:] = b"x" * len(place)
    assert bytes(taker.given) == b"x" * (1 << 20)
    assert len(after) == STAGE_BYTES, "what follows is read along"


@pytest.mark.parametrize("size", [5, 1 << 20])
def test_a_refused_chunk_is_read_and_dropped_and_the_next_one_arrives(size: int) -> None:
    taker = Taker()
    taker.refuses = 1
    pour(PlainReader(taker), frame(state_chunk(size), bytes(size)) + frame(state_chunk(2), b"yz"))
    assert taker.payloads == [b"yz"]


def test_all_that_is_dropped_goes_through_one_small_buffer() -> None:
    taker = Taker()
    taker.refuses, reader = 3, PlainReader(taker)
    seen: list[object] = []
    for payload in (bytes(5 * DROPPED_BYTES), bytes(1), bytes(DROPPED_BYTES)):
        pour(reader, frame(state_chunk(len(payload)), payload))
        seen.append(reader._dropped.obj)
    assert all(each is seen[0] for each in seen)
    assert reader._dropped.nbytes == DROPPED_BYTES


def test_a_head_longer_than_the_stage_arrives() -> None:
    names = [Contributor(PeerId(f"peer.{n}"), 1, 1, "a" * 32) for n in range(limits.PEERS_MAX)]
    chunk = ResultChunk(Stamp(1, 2, 3, 0, 4, 0), 0, tuple(names), "b" * 32, 0, 1, 0, 1, False)
    assert len(codec.encode(chunk)) > 3 * STAGE_BYTES
    taker = Taker()
    pour(PlainReader(taker), 2 * frame(chunk, b"1234"), [7, STAGE_BYTES])
    assert taker.payloads == [b"1234", b"1234"]


BAD = {
    "a huge head": PREFIX.pack(limits.CHUNK_HEADER_BYTES_MAX + 1, 1),
    "a huge payload": PREFIX.pack(20, limits.CHUNK_BYTES_MAX + 1),
    "all ones": b"\xff" * 64,
    "a chunk without payload": frame(state_chunk(1)),
    "no msgpack": PREFIX.pack(3, 1) + b"\xc1\xc1\xc1",
    "a control message": frame(Leave("bye"), b"x"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_chunk_is_an_error_of_its_sender(kind: str) -> None:
    taker = Taker()
    with pytest.raises(WireError):
        pour(PlainReader(taker), BAD[kind] + bytes(100))
    assert taker.payloads == []
