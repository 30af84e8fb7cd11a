"""Sums that grow as slices arrive: the bytes of one sum over whole slices, in turns."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.exchange.payload_keys import ResultKey, SliceKey, slice_key
from peers.exchange.pieces import PIECE_ELEMENTS, Encoding, Payload, Pool, spans
from peers.exchange.reducer import PIECES_A_TURN, Reducer
from protocols.interface.commands import ReducePart
from protocols.types.ids import PeerId, Stamp
from tests.peers.payload_room import (
    GRAIN,
    STAMP,
    CodedWork,
    contributor,
    gathered,
    size_of,
    some_bytes,
    summed,
    whole,
)

ME = PeerId("me.0")
FIRST = GRAIN
"""Where our part begins in the fragment."""
LONG = 12 * PIECE_ELEMENTS
OTHERS = 3


def empty(elements: int, *, layers: int = 1) -> Payload:
    buffer = memoryview(bytearray(layers * size_of(elements)))
    return Payload(elements, size_of, buffer, layers=layers)


class Summing:
    """Sums of one part of three others' slices and, if asked for, ours; what the reducer said."""

    def __init__(self, elements: int, *, ours: int | None = None, gathers: bool = False) -> None:
        """`ours`: our place in the sum."""
        self.elements = elements
        self.grown: list[ResultKey] = []
        self.done: list[tuple[Stamp, str]] = []
        self.damaged: list[tuple[Stamp, str]] = []
        self.failed: list[str] = []
        self.reducer = Reducer(
            grew=lambda key, _payload, _index: self.grown.append(key),
            done=lambda command, digest: self.done.append((command.stamp, digest)),
            damaged=lambda command, error: self.damaged.append((command.stamp, str(error))),
            failed=lambda error: self.failed.append(str(error)),
        )
        self.work = CodedWork(FIRST + elements, salt=9, gathers=gathers)
        self.arriving = [empty(elements) for _ in range(OTHERS)]
        self.slices: list[Payload | Encoding] = list(self.arriving)
        self.terms = [contributor(PeerId(f"p{number}.1")) for number in range(OTHERS)]
        self.wholes = [some_bytes(elements, salt) for salt in range(OTHERS)]
        """In the order of the sum, as `slices` and `terms` are."""
        self.names: list[SliceKey] = [slice_key(STAMP, 0, term) for term in self.terms]
        self.theirs = list(self.wholes)
        if ours is not None:
            encoding = Encoding(self.work, 0, FIRST + elements, Pool())
            self.slices.insert(ours, encoding)
            self.terms.insert(ours, contributor(ME))
            self.wholes.insert(ours, self.work.whole[size_of(FIRST) :])

    def begin(self, stamp: Stamp = STAMP, *, terms: Sequence[int] | None = None) -> Payload:
        """`terms`: some of them only."""
        places = range(len(self.terms)) if terms is None else terms
        of = tuple(self.terms[place] for place in places)
        command = ReducePart(stamp, 0, FIRST, FIRST + self.elements, of)
        result = empty(self.elements, layers=self.work.layers(0, len(of)))
        self.reducer.begin_sum(self.work, ME, command, [self.slices[x] for x in places], result)
        return result

    def arrive(self, who: int, index: int, *, damaged: bool = False) -> None:
        payload, (start, stop) = self.arriving[who], list(spans(self.elements))[index]
        piece = self.theirs[who][size_of(start) : size_of(stop)]
        payload.piece(index)[:] = b"\xff" * len(piece) if damaged else piece
        payload.add(index, b".")
        self.reducer.grew(self.work, self.names[who])

    def all_arrive(self) -> None:
        for who in range(OTHERS):
            for index in range(len(self.arriving[who])):
                self.arrive(who, index)


def made(result: Payload) -> int:
    """Pieces that are summed: always the first ones."""
    count = len(result) - result.missing
    assert all(result.has(index) for index in range(count))
    return count


async def settle() -> None:
    """Whatever has a turn has it."""
    for _ in range(LONG // PIECE_ELEMENTS):
        await asyncio.sleep(0)


def play(scenario: Callable[[], object]) -> None:
    """In a loop, which is never given back to before the end."""

    async def run() -> None:
        scenario()
        await settle()

    asyncio.run(run())


@settings(deadline=None)
@given(
    elements=st.sampled_from([1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1, 5 * PIECE_ELEMENTS]),
    ours=st.sampled_from([None, 0, 2, 3]),
    order=st.permutations([(who, index) for who in range(OTHERS) for index in range(5)]),
    begins=st.integers(0, 15),
    rests=st.sets(st.integers(0, 15)),
)
def test_a_sum_goes_as_far_as_all_slices_are_here_and_has_the_bytes_of_one_sum(
    elements: int, ours: int | None, order: list[tuple[int, int]], begins: int, rests: set[int]
) -> None:
    one = Summing(elements, ours=ours)
    pieces = len(one.arriving[0])

    async def scenario() -> Payload:
        result = one.begin() if begins == 0 else None
        for number, (who, index) in enumerate(order, 1):
            if index < pieces:
                one.arrive(who, index)
            if number == begins:
                result = one.begin()
            if number in rests and result is not None:
                await settle()
                here = [all(x.has(index) for x in one.arriving) for index in range(pieces)]
                assert made(result) == [*here, False].index(False)
        await settle()
        assert result is not None
        return result

    result = asyncio.run(scenario())
    assert whole(result) == summed(one.wholes)
    assert one.done == [(STAMP, result.digest)]
    assert one.grown == [ResultKey(STAMP, 0)] * pieces
    assert len(one.work.encoded) == len(set(one.work.encoded))
    assert one.damaged == one.failed == []
    assert one.reducer._sums == {}


@pytest.mark.parametrize("ours", [None, 0, 3])
def test_a_gather_has_the_slices_side_by_side_in_their_order(ours: int | None) -> None:
    one, results = Summing(3 * PIECE_ELEMENTS + 1, ours=ours, gathers=True), list[Payload]()
    others = [place for place, term in enumerate(one.terms) if term.peer != "p1.1"]

    async def scenario() -> None:
        one.all_arrive()
        results.append(one.begin())
        results.append(one.begin(replace(STAMP, attempt=1), terms=others))
        await settle()

    asyncio.run(scenario())
    first, second = results
    assert whole(first) == gathered(one.wholes, one.elements)
    fewer = [one.wholes[place] for place in others]
    assert whole(second) == gathered(fewer, one.elements)
    assert second.layers == first.layers - 1 == len(others)
    assert sorted(digest for _, digest in one.done) == sorted([first.digest, second.digest])
    assert len(one.grown) == 2 * 4, "once for each piece"


@pytest.mark.asyncio
@pytest.mark.parametrize("arrives", [False, True])
async def test_a_long_sum_is_made_in_turns(arrives: bool) -> None:
    """However much is ready, and whatever else comes: heartbeats have their turn in between."""
    one = Summing(LONG)
    one.all_arrive()
    pieces, reached = len(one.arriving[0]), [0]
    result = one.begin()
    assert made(result) == PIECES_A_TURN
    while result.missing:
        reached.append(made(result))
        if arrives:
            for name in one.names:
                one.reducer.grew(one.work, name)
        await asyncio.sleep(0)
    reached.append(made(result))
    steps = [later - before for before, later in pairwise(reached)]
    assert max(steps) == PIECES_A_TURN
    assert len(steps) >= pieces // PIECES_A_TURN


@pytest.mark.parametrize("who", range(OTHERS))
def test_a_damaged_slice_ends_its_sum_only(who: int) -> None:
    one = Summing(3 * PIECE_ELEMENTS, ours=1)
    again = replace(STAMP, attempt=1)
    others = [place for place, term in enumerate(one.terms) if term.peer != f"p{who}.1"]

    async def scenario() -> tuple[Payload, Payload]:
        first, second = one.begin(), one.begin(again, terms=others)
        for index in range(3):
            for number in range(OTHERS):
                one.arrive(number, index, damaged=index == 1 and number == who)
        await settle()
        return first, second

    first, second = asyncio.run(scenario())
    assert one.damaged == [(STAMP, "no slice")]
    assert made(first) == 1
    assert whole(second) == summed([one.wholes[place] for place in others])
    assert one.done == [(again, second.digest)]
    assert one.reducer._sums == {}


def test_another_attempt_sums_again_from_the_same_slices() -> None:
    one = Summing(3 * PIECE_ELEMENTS, ours=0)
    results: list[Payload] = []

    async def scenario() -> None:
        one.all_arrive()
        for attempt in range(3):
            results.append(one.begin(replace(STAMP, attempt=attempt)))
            await settle()

    asyncio.run(scenario())
    assert {whole(result) for result in results} == {summed(one.wholes)}
    assert len(one.done) == 3
    assert sorted(one.work.encoded) == list(spans(FIRST + 3 * PIECE_ELEMENTS)), "once for all"


def test_what_is_dropped_goes_no_further_and_the_rest_does() -> None:
    one, later = Summing(LONG), replace(STAMP, round=STAMP.round + 1)
    other = replace(STAMP, fragment=1)

    async def scenario() -> list[Payload]:
        one.all_arrive()
        results = [one.begin(stamp) for stamp in (replace(STAMP, round=4), STAMP, later, other)]
        one.reducer.drop(0, STAMP.round)  # A turn of each is to come.
        await settle()
        return results

    results = asyncio.run(scenario())
    assert [made(result) for result in results[:2]] == [PIECES_A_TURN] * 2
    assert [whole(result) for result in results[2:]] == [summed(one.wholes)] * 2
    assert [stamp for stamp, _ in one.done] == [later, other]
    assert {(key.fragment, key.round) for key in one.reducer._waiting} == {(0, 6), (1, 5)}
    for stamp in (later, other):
        one.reducer.drop(stamp.fragment, stamp.round)
    assert one.reducer._waiting == one.reducer._sums == {}


def test_what_cannot_be_encoded_is_our_own_failure() -> None:
    one = Summing(PIECE_ELEMENTS, ours=0)
    one.work.fails = "no memory of the ranks"
    play(lambda: (one.all_arrive(), one.begin()))
    assert one.failed == ["no memory of the ranks"]
    assert one.damaged == one.done == []


def test_a_piece_of_a_slice_that_nothing_sums_is_no_matter() -> None:
    one = Summing(PIECE_ELEMENTS)
    play(one.all_arrive)
    assert one.grown == one.done == []
