"""Pieces become payloads whole or not at all, in bounded memory; and nothing is kept for ever."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.exchange.inbound import OPEN_MAX
from peers.exchange.payload_keys import ResultKey, key_of, slice_key
from peers.exchange.pieces import PIECE_ELEMENTS, digest_of
from protocols.interface import events as v
from protocols.messages.peer import PieceChunk
from protocols.types.ids import PeerId
from tests.peers.payload_room import (
    ALPHA,
    BETA,
    GAMMA,
    PIECE_BYTES,
    STAMP,
    Room,
    contributor,
    pieces_of,
    result_of,
    size_of,
    slice_of,
    some_bytes,
    whole,
)

TWO, THREE = 2 * PIECE_ELEMENTS, 3 * PIECE_ELEMENTS
SLICE = slice_key(STAMP, 0, contributor())
RESULT = ResultKey(STAMP, 0)
SIZES = st.sampled_from([1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1, THREE - 1, THREE])

# Together ---------------------------------------------------------------------------------------


CUT_OFF, CUT_OFF_IN_A_PIECE, LOOK = -1, -2, -3
STEPS = st.lists(st.integers(-3, 2), max_size=20)
"""A piece, or one of these."""


@settings(deadline=None)
@given(elements=SIZES, steps=STEPS)
def test_a_slice_comes_together_in_any_order_and_over_connections_that_break_off(
    elements: int, steps: list[int]
) -> None:
    """Each piece is taken once, what broke off goes on, and what is here is not written again."""
    room, wanted = Room(), some_bytes(elements)
    pieces = pieces_of(slice_of(elements), wanted)
    taken, held = set[int](), None
    for number, step in enumerate([*steps, *range(len(pieces))]):
        if step == LOOK:
            room.look()
        elif step == CUT_OFF:
            room.inbound.forget(ALPHA)
        elif step == CUT_OFF_IN_A_PIECE:
            chunk, piece = pieces[number % len(pieces)]
            place = room.inbound.place(ALPHA, chunk, len(piece))
            if place is not None:
                place[: len(piece) // 2] = b"\xff" * (len(piece) // 2)
            room.inbound.forget(ALPHA)
        elif step < len(pieces):
            assert room.bring(ALPHA, *pieces[step]) == (step not in taken)
            taken.add(step)
        before, held = held, room.inbound.slices.get(SLICE)
        assert before is None or held is before, "it may be summed already"
    room.look()
    names = (ALPHA, STAMP, 0, contributor())
    begun = [v.SliceBegun(*names)] * (len(pieces) > 1)
    assert room.told == [*begun, v.SliceReceived(*names)]
    assert whole(room.inbound.slices[SLICE]) == wanted


@settings(deadline=None)
@given(elements=SIZES, steps=st.lists(st.sampled_from([0, 0, 0, 1, 1, CUT_OFF]), max_size=12))
def test_results_of_one_part_come_from_several_peers_each_whole(
    elements: int, steps: list[int]
) -> None:
    room, wanted = Room(), some_bytes(elements)
    pieces, next_of = pieces_of(result_of(elements), wanted), [0, 0]
    for step in [*steps, 0, 0, 0]:
        if step == CUT_OFF:
            room.inbound.forget(ALPHA)
            next_of[0] = 0  # Its part of a result is worth nothing alone.
        elif next_of[step] < len(pieces):
            room.bring((ALPHA, BETA)[step], *pieces[next_of[step]])
            next_of[step] += 1
        for event in room.look():
            assert isinstance(event, v.ResultReceived)
            assert whole(room.inbound.results[RESULT]) == wanted
            digest = room.inbound.results[RESULT].digest
            assert event == v.ResultReceived(event.sender, STAMP, 0, (contributor(),), digest)
    assert room.told
    assert whole(room.inbound.results[RESULT]) == wanted


def test_word_of_each_piece_of_a_slice_goes_to_the_sums_once_the_core_knows_it() -> None:
    room = Room()
    first, second, third = pieces_of(slice_of(THREE), some_bytes(THREE))
    room.bring(ALPHA, *second)
    assert room.events == [v.SliceBegun(ALPHA, STAMP, 0, contributor())]
    assert room.grown == []
    room.look()
    assert room.inbound.slices[SLICE].has(1)
    for count, piece in enumerate((third, first), 1):
        room.bring(ALPHA, *piece)
        assert room.grown == [SLICE] * count
        room.bring(ALPHA, *piece)
        assert room.grown == [SLICE] * count


# Refusals ---------------------------------------------------------------------------------------


def test_nobody_gets_memory_for_what_is_not_expected_and_it_is_counted_once() -> None:
    room = Room(lambda peer, _chunk: peer == ALPHA)
    pieces = pieces_of(slice_of(TWO, peer=BETA), some_bytes(TWO))
    assert not any(room.bring(BETA, *piece) for piece in pieces)
    assert room.inbound.refused == 1
    assert room.bring(ALPHA, *pieces_of(slice_of(TWO), some_bytes(TWO))[0])
    room.expects = Room().expects
    assert not room.bring(BETA, *pieces[1]), "its beginning is missing"
    room.inbound.forget(BETA)
    room.bring_all(BETA, slice_of(TWO, peer=BETA), some_bytes(TWO))
    assert whole(room.inbound.slices[slice_key(STAMP, 0, contributor(BETA))]) == some_bytes(TWO)


def test_memory_is_bounded_for_each_peer() -> None:
    room = Room()
    for part in range(2 * OPEN_MAX):
        first = pieces_of(slice_of(TWO, part=part), some_bytes(TWO))[0]
        assert room.bring(ALPHA, *first) == (part < OPEN_MAX)
    assert len(room.inbound._open[ALPHA]) == OPEN_MAX
    assert room.inbound.refused == OPEN_MAX
    assert room.bring(BETA, *pieces_of(slice_of(TWO, peer=BETA), some_bytes(TWO))[0])
    second = pieces_of(slice_of(TWO, part=3), some_bytes(TWO))[1]
    assert room.bring(ALPHA, *second), "what is under way goes on"
    room.look()
    assert room.bring(ALPHA, *pieces_of(slice_of(1, part=999), some_bytes(1))[0]), "room again"


def test_what_is_refused_counts_too_until_its_round_is_over() -> None:
    room = Room(lambda _peer, chunk: chunk.part > 999)
    for part in range(OPEN_MAX + 10):
        room.bring(ALPHA, *pieces_of(slice_of(1, part=part), some_bytes(1))[0])
    expected = pieces_of(slice_of(1, part=1000), some_bytes(1))[0]
    assert len(room.inbound._open[ALPHA]) == OPEN_MAX
    assert not room.bring(ALPHA, *expected)
    room.inbound.end(0, STAMP.round, released=False)
    assert room.bring(ALPHA, *expected)


CHUNKS = st.lists(
    st.tuples(
        st.sampled_from([ALPHA, BETA]),
        st.integers(0, 1),
        st.sampled_from([0, 1, PIECE_ELEMENTS, TWO, 1 << 62]),
        st.sampled_from([0, 1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1, THREE, THREE + 1, 1 << 62]),
        st.sampled_from([1, 5, PIECE_BYTES]),
        st.booleans(),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(chunks=CHUNKS)
def test_no_order_of_chunks_makes_a_torn_payload_or_takes_more_memory(
    chunks: list[tuple[PeerId, int, int, int, int, bool]],
) -> None:
    room = Room(lambda _peer, chunk: 0 < chunk.elements <= THREE)
    for peer, part, start, elements, size, is_result in chunks:
        digest = digest_of(b"\1" * size).hex()
        result = replace(result_of(elements, part=part), start=start, digest=digest)
        slice_ = replace(slice_of(elements, part=part, peer=peer), start=start)
        room.bring(peer, result if is_result else slice_, b"\1" * size)
        room.look()
        held = [one for opened in room.inbound._open.values() for one in opened.values() if one]
        assert len(held) <= 4
        assert all(len(one.buffer) == size_of(one.elements) <= size_of(THREE) for one in held)
    for event in room.told:
        if isinstance(event, v.SliceReceived):
            payload = room.inbound.slices[slice_key(event.stamp, event.part, event.contributor)]
            assert set(whole(payload)) == {1}, "a byte that nobody sent"
    for payload in room.inbound.results.values():
        assert set(whole(payload)) == {1}


def damaged(chunk: PieceChunk, piece: bytes) -> tuple[PieceChunk, bytes]:
    return chunk, bytes([piece[0] ^ 1]) + piece[1:]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_damaged_result_is_refused_whole_and_can_come_on_another_connection(which: int) -> None:
    room, wanted = Room(), some_bytes(THREE)
    pieces = pieces_of(result_of(THREE), wanted)
    for number, piece in enumerate(pieces):
        room.bring(ALPHA, *(damaged(*piece) if number == which else piece))
    for piece in pieces:  # Not even if it is said again.
        assert not room.bring(ALPHA, *piece)
    assert room.inbound.refused == 1
    assert room.events == []
    room.bring_all(BETA, result_of(THREE), wanted)
    assert whole(room.inbound.results.pop(RESULT)) == wanted
    room.inbound.forget(ALPHA)
    room.bring_all(ALPHA, result_of(THREE), wanted)
    assert whole(room.inbound.results[RESULT]) == wanted


def test_a_piece_that_says_another_size_of_its_payload_ends_it() -> None:
    room = Room()
    first, second = pieces_of(slice_of(TWO), some_bytes(TWO))
    room.bring(ALPHA, *first)
    room.look()
    assert not room.bring(ALPHA, replace(second[0], elements=THREE), second[1])
    assert not room.bring(ALPHA, *second)
    assert room.inbound.refused == 1


def test_what_the_core_does_not_want_is_dropped_with_its_rest() -> None:
    room = Room()
    first, second = pieces_of(slice_of(TWO), some_bytes(TWO))
    room.bring(ALPHA, *first)
    room.look(wants=False)
    assert not room.bring(ALPHA, *second)
    assert room.inbound.refused == 1
    for piece in pieces_of(result_of(TWO), some_bytes(TWO)):
        room.bring(ALPHA, *piece)
    room.look(wants=False)
    assert room.inbound.slices == room.inbound.results == {}
    assert room.inbound._undecided == {}
    assert room.inbound.refused == 2


def test_the_first_slice_stays_whatever_comes_later() -> None:
    room = Room()
    room.bring_all(ALPHA, slice_of(TWO), some_bytes(TWO))
    held = room.inbound.slices[SLICE]
    room.inbound.forget(ALPHA)
    room.bring_all(ALPHA, slice_of(TWO), some_bytes(TWO, salt=1))
    assert room.inbound.slices[SLICE] is held
    assert whole(held) == some_bytes(TWO)
    assert len(room.told) == 2


def test_nothing_is_kept_of_a_piece_that_was_refused_while_it_came() -> None:
    room = Room()
    first, second = pieces_of(slice_of(TWO), some_bytes(TWO))
    place = room.inbound.place(ALPHA, first[0], len(first[1]))
    assert place is not None
    assert not room.bring(ALPHA, replace(second[0], elements=THREE), second[1])
    place[:] = first[1]
    room.inbound.arrived(ALPHA, first[0])
    assert not room.inbound._coming[ALPHA]
    assert room.events == []


def test_a_piece_belongs_to_the_memory_that_it_was_written_to() -> None:
    """Its round was over meanwhile, and what has its name now came later."""
    room = Room()
    first, second = pieces_of(slice_of(TWO), some_bytes(TWO))
    place = room.inbound.place(ALPHA, first[0], len(first[1]))
    assert place is not None
    room.inbound.end(0, STAMP.round, released=False)
    assert room.bring(ALPHA, *second)
    place[:] = first[1]
    room.inbound.arrived(ALPHA, first[0])
    room.look()
    payload = room.inbound.slices[SLICE]
    assert (payload.has(0), payload.has(1)) == (False, True)
    room.bring(ALPHA, *first)
    assert whole(payload) == some_bytes(TWO)


@pytest.mark.parametrize("header", [slice_of(TWO), result_of(TWO)], ids=["slice", "result"])
def test_a_piece_that_comes_by_two_connections_at_once_is_written_by_one(
    header: PieceChunk,
) -> None:
    """The second one could change it after it was checked."""
    room = Room()
    (chunk, piece), second = pieces_of(header, some_bytes(TWO))
    place = room.inbound.place(ALPHA, chunk, len(piece))
    assert place is not None
    assert room.inbound.place(ALPHA, chunk, len(piece)) is None
    assert room.bring(ALPHA, *second), "another piece may come meanwhile"
    place[:] = piece
    room.inbound.arrived(ALPHA, chunk)
    room.look()
    assert room.inbound.place(ALPHA, chunk, len(piece)) is None
    room.inbound.forget(ALPHA)
    assert not room.inbound._coming


def test_nobody_writes_into_a_slice_of_somebody_else() -> None:
    """GAMMA, a member too, says that it sends the rest of ALPHA's."""
    room = Room()
    first, second = pieces_of(slice_of(TWO), some_bytes(TWO))
    room.bring(ALPHA, *first)
    room.look()
    assert not room.bring(GAMMA, second[0], bytes(PIECE_BYTES)), "it gets no memory"
    assert room.events == [v.SliceBegun(GAMMA, STAMP, 0, contributor(ALPHA))], "it is blamed"
    room.look(wants=False)
    assert room.bring(ALPHA, *second)
    room.look()
    assert whole(room.inbound.slices[SLICE]) == some_bytes(TWO)


def test_a_result_that_is_here_or_being_made_is_not_taken() -> None:
    room = Room()
    room.bring_all(ALPHA, result_of(TWO), some_bytes(TWO))
    assert not room.bring(BETA, *pieces_of(result_of(TWO), some_bytes(TWO))[0])
    assert not room.inbound._open[BETA]
    assert room.inbound.refused == 0


def test_a_sender_waits_for_the_core_before_it_says_the_same_again() -> None:
    room = Room()
    for _ in range(3):
        for piece in pieces_of(result_of(TWO), some_bytes(TWO)):
            room.bring(ALPHA, *piece)
    assert len(room.events) == len(room.inbound._undecided) == 1
    assert room.inbound.refused == 2


# Over -------------------------------------------------------------------------------------------


def test_slices_go_with_the_commit_and_the_rest_with_the_release() -> None:
    room = Room()
    stamps = [replace(STAMP, round=round_) for round_ in (4, 5, 6)] + [replace(STAMP, fragment=1)]
    for stamp in stamps:
        room.bring_all(ALPHA, slice_of(TWO, stamp=stamp), some_bytes(TWO))
        room.bring_all(ALPHA, result_of(TWO, stamp=stamp), some_bytes(TWO))
        for header in (slice_of(TWO, stamp=stamp, peer=BETA), result_of(TWO, stamp=stamp, part=1)):
            room.bring(BETA, *pieces_of(header, some_bytes(TWO))[0])  # Under way.
    room.look()
    inbound = room.inbound
    room.inbound.end(0, 5, released=False)
    assert {(key.fragment, key.round) for key in inbound.slices} == {(0, 6), (1, 5)}
    assert len(inbound.results) == 4
    assert len(inbound._open[BETA]) == 2 + 4
    inbound.end(0, 5, released=True)
    assert {(key.stamp.fragment, key.stamp.round) for key in inbound.results} == {(0, 6), (1, 5)}
    assert len(inbound.slices) == len(inbound._open[BETA]) == 4


def test_a_slice_is_kept_by_its_bytes_and_not_by_its_attempt() -> None:
    piece = slice_of(TWO)
    key = key_of(piece)
    assert key_of(replace(piece, stamp=replace(STAMP, attempt=3))) == key
    assert key_of(replace(piece, start=PIECE_ELEMENTS)) == key
    assert key_of(replace(piece, contributor=contributor(manifest="b" * 32))) != key
    assert key_of(replace(piece, stamp=replace(STAMP, view=2))) != key
    result = result_of(TWO)
    assert key_of(replace(result, stamp=replace(STAMP, attempt=3))) != key_of(result)


def test_only_memory_that_no_link_writes_to_is_used_again() -> None:
    room = Room()
    begun, second = pieces_of(slice_of(TWO), some_bytes(TWO))
    room.bring(ALPHA, *begun)
    room.look()
    place = room.inbound.place(ALPHA, second[0], PIECE_BYTES)
    assert place is not None
    room.bring_all(BETA, slice_of(TWO, peer=BETA), some_bytes(TWO))
    over = room.inbound.slices[slice_key(STAMP, 0, contributor(BETA))].buffer
    room.bring_all(BETA, result_of(TWO), some_bytes(TWO))
    result = room.inbound.results[RESULT].buffer
    room.inbound.end(0, STAMP.round, released=True)
    again = [room.pool.take(size_of(TWO)) for _ in range(4)]
    assert {id(over.obj), id(result.obj)} <= {id(buffer.obj) for buffer in again}
    place[:] = b"\xff" * PIECE_BYTES  # The link reads on.
    assert all(b"\xff" not in bytes(buffer) for buffer in again)
    room.inbound.arrived(ALPHA, second[0])
    assert room.inbound.slices == {}
    assert room.events == []


@pytest.mark.parametrize("how", ["refused", "cut off", "unwanted"])
def test_memory_of_what_did_not_come_to_anything_is_not_used_again(how: str) -> None:
    room = Room()
    first, second = pieces_of(result_of(TWO), some_bytes(TWO))
    place = room.inbound.place(ALPHA, first[0], PIECE_BYTES)
    assert place is not None
    place[:] = first[1]
    room.inbound.arrived(ALPHA, first[0])
    if how == "refused":
        room.bring(ALPHA, *damaged(*second))
    elif how == "cut off":
        room.inbound.forget(ALPHA)
    else:
        room.bring(ALPHA, *second)
        room.look(wants=False)
    room.inbound.end(0, STAMP.round, released=True)
    assert room.pool.take(size_of(TWO)).obj is not place.obj
