"""The data plane of one peer without a driver: what is kept for whom, and sums on their way out."""

import asyncio
from dataclasses import replace

import pytest

from peers.exchange.background_rate import BackgroundRate
from peers.exchange.outbound import CellStream
from peers.exchange.payload_keys import ResultKey, slice_key
from peers.exchange.pieces import IDLE_ROUNDS, PIECE_ELEMENTS, Encoding, Payload, Pool
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages.peer import ContributionChunk, PieceChunk, ResultChunk, StateChunk
from protocols.state.parts import ELEMENT_BYTES
from protocols.types.ids import PeerId
from tests.peers import xor_node
from tests.peers.exchange_room import ELEMENTS, ME, Alone
from tests.peers.payload_room import (
    ALPHA,
    BETA,
    STAMP,
    contributor,
    gathered,
    pieces_of,
    result_of,
    size_of,
    some_bytes,
    summed,
)

STATE = StateChunk(1, 2, 3, 0, 4, 0, 3)


def test_what_is_sent_to_nobody_is_not_kept() -> None:
    alone, cells = Alone(), [(STATE, memoryview(b"state of it!"))]

    async def scenario() -> None:
        def stream() -> CellStream:
            return CellStream(cells, BackgroundRate(lambda: None), lambda _size: None)

        alone.data_plane.outbounds.replace_cells(ALPHA, stream())
        assert alone.data_plane.outbounds._outbound == {}
        alone.data_plane.meet(ALPHA, 1)
        assert alone.fetch(ALPHA) == [], "nor for whoever comes later"
        alone.data_plane.outbounds.replace_cells(ALPHA, stream())
        assert alone.woken == [ALPHA]
        assert alone.fetch(ALPHA) == cells
        alone.data_plane.outbounds.replace_cells(ALPHA, stream())
        alone.data_plane.outbounds.replace_cells(ALPHA, None)
        assert alone.fetch(ALPHA) == [], "it is not wanted any more"
        alone.data_plane.outbounds.replace_cells(ALPHA, stream())
        alone.data_plane.forget(ALPHA)
        alone.data_plane.meet(ALPHA, 1)
        assert alone.fetch(ALPHA) == [], "the core says again what it still needs"

    asyncio.run(scenario())


def test_a_result_goes_out_while_it_is_made() -> None:
    alone, fetched = Alone(), list[PieceChunk]()

    def wake(peer: PeerId) -> None:
        for frame in alone.fetch(peer):
            assert isinstance(frame[0], PieceChunk)
            if peer == ALPHA:
                fetched.append(frame[0])

    async def scenario() -> None:
        for peer in (ALPHA, BETA):
            alone.data_plane.meet(peer, 1)
        alone.data_plane.outbounds.wake = wake
        alone.reduce()
        assert 0 < len(fetched) < 5
        assert alone.events == []
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    wanted = summed([alone.work.whole])
    (event,) = alone.events
    assert isinstance(event, v.PartReduced)
    header = replace(result_of(ELEMENTS), contributors=(contributor(ME),))
    assert fetched == [chunk for chunk, _ in pieces_of(header, wanted)]
    parts, terms = alone.data_plane.parts(STAMP, 1)
    assert b"".join(map(bytes, parts)) == wanted
    assert terms == (contributor(ME),)
    assert alone.fetch(BETA) == []


@pytest.mark.parametrize(("far", "first"), [(False, ResultChunk), (True, ContributionChunk)])
def test_contributions_go_first_to_who_is_far(far: bool, first: type[PieceChunk]) -> None:
    alone = Alone()

    async def scenario() -> None:
        alone.data_plane.meet(ALPHA, 1, far=far)
        alone.reduce()
        own = contributor(ME)
        alone.data_plane.send_slice(c.SendSlice(ALPHA, STAMP, 1, 0, ELEMENTS, own))
        for _ in range(10):
            await asyncio.sleep(0)
        found = [type(chunk) for chunk, _ in alone.fetch(ALPHA)]
        assert found[0] is first
        assert len(found) == 10

    asyncio.run(scenario())


def test_whose_slice_cannot_be_averaged_is_said_and_there_is_no_sum() -> None:
    alone = Alone()
    alone.work.void = (0,)

    async def scenario() -> None:
        alone.reduce()
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert alone.events == [v.PartReduced(STAMP, 0, "", (ME,))]
    assert alone.notes == [f"round {STAMP.round}: no slice"]
    assert (alone.failed, alone.data_plane.discarded) == ([], 1)


@pytest.mark.parametrize("elements", [ELEMENTS - 1, ELEMENTS + 1, PIECE_ELEMENTS])
def test_a_slice_that_began_before_its_view_was_read_may_turn_out_to_be_none(elements: int) -> None:
    alone = Alone()
    alone.data_plane.own.encoded[0, STAMP.round] = Encoding(alone.work, 0, ELEMENTS, Pool())
    theirs = Payload(elements, size_of, memoryview(bytearray(size_of(elements))))
    theirs.add_piece(0)
    alone.data_plane.inbound.slices[slice_key(STAMP, 0, contributor(ALPHA))] = theirs
    terms = (contributor(ALPHA), contributor(ME))
    alone.data_plane.reduce(c.ReducePart(STAMP, 0, 0, ELEMENTS, terms))
    assert alone.events == [v.PartReduced(STAMP, 0, "", (ALPHA,))]
    assert alone.notes == [f"round {STAMP.round}: alpha.1 sent no slice of part 0"]
    assert alone.data_plane.inbound.results == {}


@pytest.mark.asyncio
async def test_a_result_that_began_before_its_view_was_read_may_turn_out_to_be_none() -> None:
    async with xor_node.open_round() as (alpha, plan):
        data_plane, parts = alpha.driver.data_plane, plan.parts.borders
        for part, elements in ((0, parts[1] + 1), (len(parts) - 1, parts[1])):
            buffer = memoryview(bytearray(ELEMENT_BYTES * elements))
            payload = Payload(elements, lambda count: ELEMENT_BYTES * count, buffer)
            payload.terms = (contributor(xor_node.BETA),)
            assert not data_plane.result_grew(ResultKey(plan.stamp, part), payload, 0)


def test_what_cannot_be_encoded_for_a_link_is_our_own_failure() -> None:
    alone = Alone()
    alone.data_plane.meet(ALPHA, 1)
    alone.data_plane.own.encoded[0, STAMP.round] = Encoding(alone.work, 0, ELEMENTS, Pool())
    alone.work.fails = "no memory of the ranks"
    alone.data_plane.send_slice(c.SendSlice(ALPHA, STAMP, 0, 0, ELEMENTS, contributor(ME)))
    assert alone.fetch(ALPHA) == []
    assert [str(error) for error in alone.failed] == ["no memory of the ranks"]


def test_a_commit_and_a_release_leave_nothing() -> None:
    alone = Alone()

    async def scenario() -> None:
        for peer in (ALPHA, BETA):
            alone.data_plane.meet(peer, 1)
        alone.reduce()
        alone.data_plane.drop_slices(0, STAMP.round)  # Before the sum is whole.
        for _ in range(10):
            await asyncio.sleep(0)
        assert alone.events == []
        assert alone.fetch(ALPHA) == alone.fetch(BETA) == []
        assert alone.data_plane.own.encoded == {}
        alone.data_plane.release(0, STAMP.round)
        assert alone.data_plane.inbound.results == {}
        pool = alone.data_plane._pool
        pool.give(pool.take(1 << 20))
        for _ in range(IDLE_ROUNDS + 1):
            assert pool._free != {}
            alone.data_plane.release(0, STAMP.round)
        assert pool._free == {}, "no round needs it any more"

    asyncio.run(scenario())


@pytest.mark.parametrize("gathers", [False, True])
def test_a_result_is_looked_at_before_it_counts_as_here(gathers: bool) -> None:
    """Of an attempt that our log does not know yet."""
    alone = Alone()
    alone.work.gathers = gathers
    terms = [contributor(ALPHA), contributor(BETA)]
    header = result_of(ELEMENTS, of=terms if gathers else ())
    size = header.layers * size_of(ELEMENTS)
    payload = Payload(ELEMENTS, size_of, memoryview(bytearray(size)), layers=header.layers)
    key, payload.terms = ResultKey(STAMP, 0), header.contributors
    assert alone.data_plane.result_grew(key, payload, 1)
    payload.piece(2)[:1] = alone.work.refused
    assert not alone.data_plane.result_grew(key, payload, 2)
    assert alone.notes == ["round 5: no result"]
    assert alone.work.checked == [bytes(payload.piece(1)), bytes(payload.piece(2))]


def test_a_result_that_was_not_its_senders_to_give_makes_room_for_the_owners() -> None:
    alone = Alone()
    results, key = alone.data_plane.inbound.results, ResultKey(STAMP, 0)
    for part in (0, 1):
        results[ResultKey(STAMP, part)] = Payload(1, lambda _: 8, memoryview(bytes(8)))
    alone.data_plane.drop_result(*key)
    assert list(results) == [ResultKey(STAMP, 1)]
    assert alone.data_plane._pool._free == {}, "what was begun from it is known by its memory"
    alone.data_plane.drop_result(*key)


# Memory -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["slices", "slices of many names", "results"])
async def test_one_peer_gets_memory_for_one_fragment_of_a_view_that_we_have_not_read(
    kind: str,
) -> None:
    """It says of each part that it is all of it."""
    async with xor_node.open_round() as (alpha, plan):
        later, whole_size = replace(plan.stamp, view=plan.stamp.view + 1), xor_node.ELEMENTS
        heads: list[PieceChunk] = []
        for part in range(16):
            name = contributor(xor_node.BETA, f"{part if 'names' in kind else 0:032}")
            if kind == "results":
                of = (later, part, (name,), "b" * 32)
                heads.append(ResultChunk(*of, 0, whole_size, 0, 1, left_out=False))
            else:
                heads.append(ContributionChunk(later, part, name, 0, whole_size))
        places = [
            alpha.driver.mesh_shell.place(xor_node.BETA, head, ELEMENT_BYTES * PIECE_ELEMENTS)
            for head in heads
        ]
        assert [place is not None for place in places] == [True] + 15 * [False]


@pytest.mark.asyncio
async def test_parts_that_are_here_count_with_those_that_come() -> None:
    async with xor_node.open_round() as (alpha, plan):
        beta, half = xor_node.BETA, xor_node.ELEMENTS // 2
        later = replace(plan.stamp, view=plan.stamp.view + 1)
        head = ContributionChunk(later, 0, contributor(beta), 0, 0)
        for part, elements, fits in ((0, half, True), (1, half + 1, False), (2, half, True)):
            taken = xor_node.bring(alpha, beta, replace(head, part=part), elements)
            assert taken == fits, part
            await alpha.until(lambda: not alpha.driver.data_plane.inbound._undecided)
        assert not xor_node.bring(alpha, beta, replace(head, part=3), 1)
        other = replace(later, view=later.view + 1)
        assert xor_node.bring(alpha, beta, replace(head, stamp=other), 2 * half)


@pytest.mark.asyncio
async def test_states_on_their_way_give_way_to_what_is_wanted_only() -> None:
    async with xor_node.open_round() as (alpha, plan):
        name, size = contributor(xor_node.BETA), plan.parts.borders[1]
        cell, pace = ELEMENT_BYTES * PIECE_ELEMENTS, alpha.driver.snapshots.pace
        for elements, wanted in ((size + 1, False), (size, True)):
            pace._last, pace._credit_bytes = float("-inf"), 0.0
            head = ContributionChunk(plan.stamp, 1 - wanted, name, 0, elements)
            assert (alpha.driver.mesh_shell.place(xor_node.BETA, head, cell) is not None) == wanted
            assert pace.may_send(cell) != wanted


# Gathers: what a receiver has itself ------------------------------------------------------------


TERMS = (contributor(ALPHA), contributor(ME))


def gatherer() -> Alone:
    """Gathers ALPHA's slice and ours, ALPHA's present life being its first."""
    alone = Alone()
    alone.work.gathers = True
    for peer in (ALPHA, BETA):
        alone.data_plane.meet(peer, 1)
    theirs = Payload(ELEMENTS, size_of, memoryview(bytearray(some_bytes(ELEMENTS, salt=1))))
    for index in range(len(theirs)):
        theirs.add(index, b".")
    theirs.life = 1
    alone.data_plane.inbound.slices[slice_key(STAMP, 0, TERMS[0])] = theirs
    alone.data_plane.own.encoded[0, STAMP.round] = Encoding(alone.work, 0, ELEMENTS, Pool())
    return alone


async def sent(alone: Alone, peer: PeerId) -> list[tuple[PieceChunk, bytes]]:
    """What one peer gets of the result, now that it is made."""
    alone.data_plane.send_result(c.SendResult(peer, STAMP, 0, TERMS))
    frames = alone.fetch(peer)
    return [(chunk, bytes(piece)) for chunk, piece in frames if isinstance(chunk, PieceChunk)]


async def made(alone: Alone) -> None:
    alone.data_plane.reduce(c.ReducePart(STAMP, 0, 0, ELEMENTS, TERMS))
    for _ in range(10):
        await asyncio.sleep(0)


WHOLE = gathered([some_bytes(ELEMENTS, salt=1), some_bytes(ELEMENTS)], ELEMENTS)


@pytest.mark.asyncio
async def test_nobody_gets_what_it_contributed_in_this_life() -> None:
    alone = gatherer()
    await made(alone)
    wanted = pieces_of(result_of(ELEMENTS, of=TERMS), WHOLE)
    assert await sent(alone, BETA) == wanted
    first = await sent(alone, ALPHA)
    ours = [(chunk, piece) for chunk, piece in wanted if getattr(chunk, "layer", 0) == 1]
    head = replace(ours[0][0], contributors=TERMS, left_out=True)
    assert first == [(head, ours[0][1]), *ours[1:]]
    alone.data_plane.forget(ALPHA)
    alone.data_plane.meet(ALPHA, 1)
    assert await sent(alone, ALPHA) == first, "the same life, over another connection"


@pytest.mark.asyncio
@pytest.mark.parametrize("why", ["another life", "committed"])
async def test_who_may_lack_what_it_contributed_gets_all(why: str) -> None:
    alone = gatherer()
    await made(alone)
    if why == "committed":
        alone.data_plane.drop_slices(0, STAMP.round)
    else:
        alone.data_plane.forget(ALPHA)
        alone.data_plane.meet(ALPHA, 2)
    assert await sent(alone, ALPHA) == pieces_of(result_of(ELEMENTS, of=TERMS), WHOLE)


def test_our_own_slice_is_known_by_its_name() -> None:
    alone, key = Alone(), ResultKey(STAMP, 0)
    buffer = memoryview(bytearray(2 * size_of(ELEMENTS)))
    payload = Payload(ELEMENTS, size_of, buffer, layers=2)
    payload.terms = TERMS
    assert alone.data_plane.own_layer(key, payload) is None
    for manifest, layer in (("a" * 32, 1), ("b" * 32, None)):
        encoding = Encoding(alone.work, 0, ELEMENTS, Pool(), manifest=manifest)
        alone.data_plane.own.encoded[0, STAMP.round] = encoding
        assert alone.data_plane.own_layer(key, payload) == layer
        assert alone.data_plane.own_piece(key, payload, 0) is None, "of a view that is over"


@pytest.mark.parametrize("discards", [True, False])
def test_what_the_core_discards_is_not_kept(discards: bool) -> None:
    alone, who = Alone(), contributor(ALPHA)
    event, key = v.SliceReceived(ALPHA, STAMP, 0, who), slice_key(STAMP, 0, who)
    payload = Payload(ELEMENTS, size_of, memoryview(bytearray(size_of(ELEMENTS))))
    alone.data_plane.inbound._undecided[type(event), ALPHA, key] = payload
    alone.data_plane.decided(event, [c.Discard(event)] if discards else [])
    assert alone.data_plane.inbound.slices == ({} if discards else {key: payload})
