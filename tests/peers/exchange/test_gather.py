"""Gathers come together slice by slice, our own from here, and only what is sound counts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.exchange.payload_keys import ResultKey
from peers.exchange.pieces import PIECE_ELEMENTS, digest_of
from protocols.interface import events as v
from protocols.messages.peer import ResultChunk
from protocols.types.ids import PeerId
from tests.peers.payload_room import (
    ALPHA,
    BETA,
    GAMMA,
    STAMP,
    Room,
    contributor,
    gathered,
    pieces_of,
    result_of,
    some_bytes,
    whole,
)

TWO = 2 * PIECE_ELEMENTS
RESULT = ResultKey(STAMP, 0)
GATHER = result_of(TWO + 1, of=[contributor(peer) for peer in (ALPHA, BETA, GAMMA)])
GATHERED = gathered([some_bytes(TWO + 1, salt) for salt in range(3)], TWO + 1)


def gathering() -> Room:
    room = Room()
    room.gathers = True
    return room


@settings(deadline=None)
@given(order=st.permutations(range(9)))
def test_a_gather_comes_together_slice_by_slice_in_any_order(order: list[int]) -> None:
    """Each piece is told of once: when all its slices are here, and it is known whose they are."""
    room, chunks, here = gathering(), pieces_of(GATHER, GATHERED), set[int]()
    for index in order:
        assert room.bring(ALPHA, *chunks[index])
        here.add(index)
        complete = {x // 3 for x in here if {x // 3 * 3 + layer for layer in range(3)} <= here}
        assert sorted(room.results_grown) == sorted(complete if 0 in here else ())
    (event,) = room.look()
    payload = room.inbound.results[RESULT]
    assert event == v.ResultReceived(ALPHA, STAMP, 0, GATHER.contributors, payload.digest)
    assert whole(payload) == GATHERED


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": 2},  # Than its contributors are.
        {"layers": 4},
        {"contributors": ()},
        {"contributors": GATHER.contributors[:2]},
    ],
)
def test_a_gather_of_more_or_fewer_slices_than_contributors_is_refused(
    wrong: dict[str, Any],
) -> None:
    room, header = gathering(), replace(GATHER, **wrong)
    slices = [some_bytes(TWO + 1, salt) for salt in range(header.layers)]
    for chunk, piece in pieces_of(header, gathered(slices, TWO + 1)):
        room.bring(ALPHA, chunk, piece)
    assert room.events == []
    assert room.inbound.refused == 1


@pytest.mark.parametrize("wrong", [{"layer": 3}, {"layers": 2}, {"layers": 1, "layer": 0}])
def test_a_chunk_of_a_layer_that_its_result_has_not_ends_it(wrong: dict[str, Any]) -> None:
    room, chunks = gathering(), pieces_of(GATHER, GATHERED)
    room.bring(ALPHA, *chunks[0])
    assert not room.bring(ALPHA, replace(chunks[1][0], **wrong), chunks[1][1])
    assert not room.bring(ALPHA, *chunks[2])
    assert room.inbound.refused == 1


def test_who_a_gather_is_of_is_said_once() -> None:
    """Pieces are weighed by it as they come: later it would be too late."""
    room, chunks = gathering(), pieces_of(GATHER, GATHERED)
    others = tuple(replace(one, tokens=99) for one in GATHER.contributors)
    for index, (chunk, piece) in enumerate(chunks):
        last = index == len(chunks) - 1
        room.bring(ALPHA, replace(chunk, contributors=others) if last else chunk, piece)
    (event,) = room.look()
    assert isinstance(event, v.ResultReceived)
    assert event.contributors == GATHER.contributors


@pytest.mark.parametrize("header", [GATHER, result_of(TWO + 1)])
def test_a_result_that_cannot_be_decoded_is_refused(header: ResultChunk) -> None:
    room = gathering()
    room.gathers, room.sound = header.layers > 1, False
    found = GATHERED if room.gathers else some_bytes(TWO + 1)
    for chunk, piece in pieces_of(header, found):
        room.bring(ALPHA, chunk, piece)
    assert room.events == []
    assert room.results_grown == [0]
    assert room.inbound.refused == 1


# Our own slice ----------------------------------------------------------------------------------


def ours_left_out(room: Room) -> list[tuple[ResultChunk, bytes]]:
    """BETA is told what the others contributed; what it has, it has."""
    room.me, room.own = BETA, some_bytes(TWO + 1, salt=1)
    found = [
        (replace(chunk, left_out=bool(chunk.contributors)), piece)
        for chunk, piece in pieces_of(GATHER, GATHERED)
        if isinstance(chunk, ResultChunk) and chunk.layer != 1
    ]
    assert len(found) == 6
    return found


def forgery_of(frame: tuple[ResultChunk, bytes]) -> tuple[ResultChunk, bytes]:
    """Zeros in place of what we contributed, of the same piece."""
    forged = bytes(len(frame[1]))
    return replace(frame[0], contributors=(), layer=1, digest=digest_of(forged).hex()), forged


@settings(deadline=None)
@given(order=st.permutations(range(6)))
def test_what_we_contributed_is_put_into_its_place_here(order: list[int]) -> None:
    """The digest is that of all, as the others have it."""
    room = gathering()
    chunks = ours_left_out(room)
    for index in order:
        assert room.events == []
        assert room.bring(ALPHA, *chunks[index])
    (event,) = room.look()
    payload = room.inbound.results[RESULT]
    assert whole(payload) == GATHERED
    full = gathering()
    full.bring_all(ALPHA, GATHER, GATHERED)
    assert [event] == full.told
    assert sorted(room.results_grown) == [0, 1, 2]


@pytest.mark.parametrize("lacks", ["name", "bytes"])
def test_what_is_left_out_and_not_here_makes_no_result(lacks: str) -> None:
    """An earlier life of ours contributed it, or the round is over: others send all of it."""
    room = gathering()
    chunks = ours_left_out(room)
    if lacks == "name":
        room.me = PeerId("me.0")
    else:
        room.own = b""
    for chunk, piece in chunks:
        room.bring(ALPHA, chunk, piece)
    assert room.events == []
    assert room.inbound.refused == 1
    room.bring_all(GAMMA, GATHER, GATHERED)
    assert whole(room.inbound.results[RESULT]) == GATHERED


def test_nobody_writes_over_our_own_slice_once_it_is_there() -> None:
    """A chunk that a link had a place for before we knew which layer is ours."""
    room = gathering()
    chunks = ours_left_out(room)
    header, forged = forgery_of(chunks[0])
    place = room.inbound.place(ALPHA, header, len(forged))
    assert place is not None
    for chunk, piece in chunks:
        room.bring(ALPHA, chunk, piece)
    place[:] = forged
    room.inbound.arrived(ALPHA, header)
    assert room.events == []
    assert room.inbound.refused == 1
    room.bring_all(GAMMA, GATHER, GATHERED)
    assert whole(room.inbound.results[RESULT]) == GATHERED


def test_nothing_is_left_out_of_a_sum() -> None:
    room = Room()
    room.me, room.own = ALPHA, some_bytes(TWO + 1)
    for chunk, piece in pieces_of(result_of(TWO + 1), some_bytes(TWO + 1)):
        assert isinstance(chunk, ResultChunk)
        room.bring(BETA, replace(chunk, left_out=bool(chunk.contributors)), piece)
    assert room.events == []
    assert room.inbound.refused == 1


def test_nobody_forges_our_own_slice() -> None:
    room = gathering()
    chunks = ours_left_out(room)
    room.bring(ALPHA, *chunks[0])
    header, forged = forgery_of(chunks[0])
    assert not room.bring(ALPHA, header, forged)
    for chunk, piece in chunks[1:]:
        room.bring(ALPHA, chunk, piece)
    assert room.events == []
    assert room.inbound.refused == 1
