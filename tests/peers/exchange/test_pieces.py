"""What is here of a payload, where the rest belongs; ours are encoded once, as far as needed."""

import asyncio
from itertools import pairwise
from mmap import PAGESIZE
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.exchange import pieces
from peers.exchange.pieces import (
    IDLE_ROUNDS,
    MAPPED_BYTES_MIN,
    PIECE_ELEMENTS,
    Encoding,
    Payload,
    Pool,
    digest_of,
    spans,
)
from tests.peers.payload_room import (
    GRAIN,
    PIECE_BYTES,
    CodedWork,
    gathered,
    size_of,
    some_bytes,
)

SIZES = st.one_of(
    st.integers(1, 5 * PIECE_ELEMENTS),
    st.sampled_from([1, GRAIN, PIECE_ELEMENTS - 1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1]),
    st.sampled_from([3 * PIECE_ELEMENTS, 3 * PIECE_ELEMENTS + 1]),
)


def payload_of(elements: int) -> Payload:
    return Payload(elements, size_of, memoryview(bytearray(size_of(elements))))


@given(elements=SIZES)
def test_pieces_lie_side_by_side_and_only_the_last_may_be_shorter(elements: int) -> None:
    found = list(spans(elements))
    assert found[0][0] == 0
    assert found[-1][1] == elements
    assert all(stop == start for (_, stop), (start, _) in pairwise(found))
    assert all(stop - start == PIECE_ELEMENTS for start, stop in found[:-1])
    assert 0 < found[-1][1] - found[-1][0] <= PIECE_ELEMENTS


def test_what_has_no_elements_has_no_pieces() -> None:
    assert list(spans(0)) == []
    assert payload_of(0).missing == 0


# Payloads ---------------------------------------------------------------------------------------


@given(elements=SIZES, data=st.data())
def test_a_payload_is_put_together_in_any_order(elements: int, data: st.DataObject) -> None:
    wanted, payload, places = some_bytes(elements), payload_of(elements), list(spans(elements))
    order = data.draw(st.permutations(range(len(places))))
    for done, number in enumerate(order):
        assert payload.missing == len(places) - done
        start, stop = places[number]
        index = payload.index_of(start, size_of(stop) - size_of(start))
        assert index is not None
        assert index == number
        assert not payload.has(index)
        payload.piece(index)[:] = wanted[size_of(start) : size_of(stop)]
        for _ in range(2):  # A second time changes nothing.
            payload.add(index, digest_of(payload.piece(index)))
        assert payload.has(index)
    assert payload.missing == 0
    assert bytes(payload.buffer) == wanted
    digests = [digest_of(wanted[size_of(a) : size_of(b)]) for a, b in places]
    assert payload.digest == xxhash.xxh3_128_hexdigest(b"".join(digests))
    assert [payload.digest_of(number) for number in range(len(places))] == digests


@given(elements=SIZES, start=st.integers(0, 1 << 63), size=st.integers(0, 1 << 32))
def test_nothing_but_a_piece_has_a_place(elements: int, start: int, size: int) -> None:
    index = payload_of(elements).index_of(start, size)
    wanted = [
        number
        for number, (first, stop) in enumerate(spans(elements))
        if (first, size_of(stop) - size_of(first)) == (start, size)
    ]
    assert [index] == (wanted or [None])


@pytest.mark.parametrize(
    ("start", "size"),
    [
        (0, PIECE_BYTES - 1),
        (0, PIECE_BYTES + 1),
        (0, 5),
        (1, PIECE_BYTES),
        (GRAIN, PIECE_BYTES),
        (PIECE_ELEMENTS, PIECE_BYTES),
        (2 * PIECE_ELEMENTS, 5),
        (2 * PIECE_ELEMENTS, 0),
        (1 << 62, PIECE_BYTES),
    ],
)
def test_neighbours_of_pieces_have_no_place(start: int, size: int) -> None:
    payload = payload_of(PIECE_ELEMENTS + 1)
    assert payload.index_of(start, size) is None
    assert payload.index_of(0, PIECE_BYTES) == 0
    assert payload.index_of(PIECE_ELEMENTS, 5) == 1


@given(elements=SIZES, layers=st.integers(1, 5), data=st.data())
def test_layers_of_a_piece_lie_side_by_side_and_each_comes_by_itself(
    elements: int, layers: int, data: st.DataObject
) -> None:
    wholes = [some_bytes(elements, salt) for salt in range(layers)]
    buffer = memoryview(bytearray(layers * size_of(elements)))
    payload, places = Payload(elements, size_of, buffer, layers=layers), list(spans(elements))
    chunks = [(number, layer) for number in range(len(places)) for layer in range(layers)]
    assert len(payload) == payload.missing == len(chunks)
    order, done = data.draw(st.permutations(chunks)), set[tuple[int, int]]()
    for number, layer in order:
        start, stop = places[number]
        size = size_of(stop) - size_of(start)
        assert payload.index_of(start, size, layers) is None, "there is no such layer"
        assert payload.index_of(start, size + 1, layer) is None
        index = payload.index_of(start, size, layer)
        assert index is not None
        assert index == payload.at(start, layer) == layers * number + layer
        payload.chunk(index)[:] = wholes[layer][size_of(start) : size_of(stop)]
        payload.add(index, digest_of(payload.chunk(index)))
        done.add((number, layer))
        for each in range(len(places)):
            assert payload.has_piece(each) == all((each, x) in done for x in range(layers))
    assert bytes(payload.buffer) == gathered(wholes, elements)
    for number, (start, stop) in enumerate(places):
        wanted = b"".join(whole[size_of(start) : size_of(stop)] for whole in wholes)
        assert bytes(payload.piece(number)) == wanted
    made = Payload(elements, size_of, buffer, layers=layers)
    for number in range(len(places)):
        made.add_piece(number)
    assert made.digest == payload.digest


def test_only_a_whole_payload_has_a_digest() -> None:
    payload = payload_of(PIECE_ELEMENTS + 1)
    payload.add(0, b"x" * 16)
    with pytest.raises(AssertionError, match="not whole"):
        _ = payload.digest


# The pool ---------------------------------------------------------------------------------------


def test_memory_is_used_again_for_exactly_its_size_and_by_one_at_a_time() -> None:
    pool = Pool()
    first, second = pool.take(10), pool.take(10)
    assert first.obj is not second.obj
    pool.give(first)
    assert pool.take(9).obj is not first.obj
    assert pool.take(10).obj is first.obj
    assert pool.take(10).obj is not first.obj


def test_no_page_of_much_memory_is_touched_before_somebody_writes_there() -> None:
    """128 MiB of zeros, written by us, would hold the loop up for 30 ms and more."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE

    before, size = resident_bytes(), 64 * MAPPED_BYTES_MIN
    taken = Pool().take(size)
    assert taken.nbytes == size
    assert resident_bytes() < before + size // 4
    taken[: size // 2] = bytes(size // 2)
    assert resident_bytes() > before + size // 4


def test_no_more_memory_is_kept_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "FREE_BYTES_MAX", 25)
    pool = Pool()
    taken = [pool.take(10) for _ in range(3)]
    for buffer in taken:
        pool.give(buffer)
    found = {id(pool.take(10).obj) for _ in range(3)} & {id(buffer.obj) for buffer in taken}
    assert len(found) == 2
    for buffer in taken[:2]:
        pool.give(buffer)  # What was taken does not count.
    assert id(pool.take(10).obj) in {id(buffer.obj) for buffer in taken[:2]}


@pytest.mark.asyncio
@pytest.mark.parametrize("fragments", [1, 3])
async def test_memory_of_sizes_that_no_round_needs_any_more_goes_back(fragments: int) -> None:
    """Parts have other sizes with each number of peers."""
    pool, kept = Pool(), list[int]()
    for part in (60, 40, 30, 40):
        seen = set[int]()
        for _ in range((IDLE_ROUNDS + 1) * fragments):
            taken = [pool.take(part), pool.take(part)]
            seen |= {id(buffer.obj) for buffer in taken}
            for buffer in taken:
                pool.give(buffer)
            pool.round_over(fragments)
        assert len(seen) == 2, "what is needed stays"
        kept.append(sum(map(len, pool._free.values())))
    assert kept == [2, 2, 2, 2]
    assert pool._bytes == 2 * 40


@pytest.mark.asyncio
async def test_memory_that_comes_back_later_than_its_size_was_needed_is_not_kept() -> None:
    pool = Pool()
    late = pool.take(60)
    for _ in range(IDLE_ROUNDS + 1):
        pool.round_over(1)
    pool.give(late)
    assert pool._free == {}
    assert pool.take(60).obj is not late.obj


@pytest.mark.asyncio
async def test_buffers_that_no_payload_needs_soon_go_back_to_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces, "IDLE_BYTES_PER_S", float("inf"))  # No delay.
    pool = Pool()
    one, other = pool.take(1 << 20), pool.take(1 << 20)
    pool.give(one)
    pool.round_over(1)
    assert pool.take(1 << 20) is one, "the next round needs it at once"
    await asyncio.sleep(0.01)
    pool.give(one)
    pool.give(other)
    assert len(pool._free[1 << 20]) == 2
    pool.round_over(1)
    await asyncio.sleep(0.01)
    assert pool._free == {}


# Our own contribution ---------------------------------------------------------------------------


@settings(deadline=None)
@given(elements=SIZES, data=st.data())
def test_cuts_at_any_borders_are_the_bytes_of_the_whole_encoded_once(
    elements: int, data: st.DataObject
) -> None:
    work = CodedWork(elements)
    encoding, grains = Encoding(work, 0, elements, Pool()), -(-elements // GRAIN)
    border = st.integers(0, grains).map(lambda count: min(count * GRAIN, elements))
    cuts = data.draw(st.lists(st.tuples(border, border).map(sorted), max_size=6))
    needed: set[tuple[int, int]] = set()
    for start, stop in cuts:
        assert bytes(encoding.cut(start, stop)) == work.whole[size_of(start) : size_of(stop)]
        if start < stop:
            needed |= {(a, b) for a, b in spans(elements) if a < stop and start < b}
        assert set(work.encoded) >= needed
        assert len(set(work.encoded)) == len(work.encoded), "no element is encoded twice"
    if all(start < stop for start, stop in cuts):
        assert set(work.encoded) == needed, "nor one that nobody needs"
    assert bytes(encoding.cut(0, elements)) == work.whole
    assert sorted(work.encoded) == list(spans(elements))


def test_it_is_made_where_the_work_says_or_in_memory_of_the_pool() -> None:
    pool, place = Pool(), memoryview(bytearray(size_of(PIECE_ELEMENTS)))
    there = Encoding(CodedWork(PIECE_ELEMENTS, place=place), 0, PIECE_ELEMENTS, pool)
    assert there.cut(GRAIN, 2 * GRAIN).obj is place.obj
    there.release()
    elsewhere = Encoding(CodedWork(PIECE_ELEMENTS), 0, PIECE_ELEMENTS, pool)
    memory = elsewhere.cut(GRAIN, 2 * GRAIN).obj
    assert memory is not place.obj, "a place is not the pool's to give away"
    elsewhere.release()
    assert pool.take(size_of(PIECE_ELEMENTS)).obj is memory
