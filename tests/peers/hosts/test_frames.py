"""Frames, and the order in which they leave."""

from collections.abc import Iterator

import pytest

from peers.hosts.frames import (
    BEHIND_MAX,
    HEAD,
    URGENT_BYTES_MAX,
    Frame,
    FrameKind,
    Outgoing,
    decode_head,
)
from peers.ipc.msgpack_records import RECORD_BYTES_MAX, LinkError

PIECES = [Frame(FrameKind.CONTRIBUTED_PIECE, bytes([n]), 1, 2, 3) for n in range(3)]
RECORD = Frame(FrameKind.RANK, b"contributed", 1)
URGENT = Frame(FrameKind.STEPS, b"steps")


def test_a_frame_comes_back() -> None:
    frame = Frame(FrameKind.RESULT_PIECE, b"values", 2, 70_000, 1 << 40)
    encoded = frame.encode()
    head, size = decode_head(encoded[: HEAD.size])
    assert encoded[HEAD.size :] == frame.payload
    assert size == len(frame.payload)
    assert (head.kind, head.rank, head.fragment, head.generation) == (4, 2, 70_000, 1 << 40)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (HEAD.pack(9, 0, 0, 0, 0), "unknown kind 9"),
        (HEAD.pack(2, 0, RECORD_BYTES_MAX + 1, 0, 0), "at most 1048576"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(head: bytes, why: str) -> None:
    with pytest.raises(LinkError, match=why):
        decode_head(head)


def test_control_messages_pass_pieces_and_others_stay_behind_them() -> None:
    outgoing = Outgoing()
    outgoing.put_behind(PIECES)
    outgoing.put_behind([RECORD])
    assert outgoing.next_bytes() == PIECES[0].encode()
    outgoing.put(URGENT)
    wanted = [URGENT, PIECES[1], PIECES[2], RECORD]
    assert [outgoing.next_bytes() for _ in wanted] == [each.encode() for each in wanted]
    assert outgoing.next_bytes() == b""


def test_a_piece_is_made_when_it_is_its_turn() -> None:
    made: list[int] = []

    def pieces() -> Iterator[Frame]:
        for number, piece in enumerate(PIECES):
            made.append(number)
            yield piece

    outgoing = Outgoing()
    outgoing.put_behind(pieces())
    outgoing.put(URGENT)
    outgoing.next_bytes()
    assert made == []
    outgoing.next_bytes()
    assert made == [0]
    outgoing.forget_behind()
    assert outgoing.next_bytes() == b""
    assert made == [0]


def test_what_waits_is_bounded() -> None:
    outgoing = Outgoing()
    large = Frame(FrameKind.RANK, bytes(RECORD_BYTES_MAX - HEAD.size))
    for _ in range(URGENT_BYTES_MAX // RECORD_BYTES_MAX):
        outgoing.put(large)
    with pytest.raises(LinkError, match="bytes unread"):
        outgoing.put(URGENT)
    for _ in range(BEHIND_MAX):
        outgoing.put_behind(())
    with pytest.raises(LinkError, match="wait for it"):
        outgoing.put_behind(())
