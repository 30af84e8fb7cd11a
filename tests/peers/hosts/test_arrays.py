"""Contributions and results between two memories, as frames that a test hands over."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from peers.hosts.arrays import HostParts
from peers.hosts.frames import Frame, FrameKind
from peers.ipc.messages import Contributed, Result
from peers.ipc.msgpack_records import LinkError
from peers.ipc.parts import PIECE_ELEMENTS, Runs, pack_parts
from peers.ipc.shared_memory import Slots, SlotsShape

ELEMENTS = 3 * PIECE_ELEMENTS + 10
SHAPE = SlotsShape(3, (4 * ELEMENTS, 40))
SPLIT = PIECE_ELEMENTS + 3
ONE = (Runs(0, 0, SPLIT, SPLIT, 1, True), Runs(1, 0, 10, 10, 1, False))
"""What rank 1 has: the beginning of fragment 0; fragment 1 is written by another rank."""
TWO = (Runs(0, SPLIT, ELEMENTS - SPLIT, ELEMENTS, 1, True), Runs(1, 0, 10, 10, 1, True))
CONTRIBUTED = Contributed(fragment=0, generation=7, steps=1, tokens=1)
RESULT = Result(
    fragment=0,
    place=1,
    kind="full",
    version=1,
    inner_step=1,
    boundary_steps=1,
    generation=5,
)


@contextmanager
def hosts() -> Generator[tuple[Slots, HostParts, Slots, HostParts]]:
    """The memory and the parts on the daemon's host, and those on the other one."""
    here, there = Slots.create(SHAPE), Slots.create(SHAPE)
    ours, theirs = HostParts(here), HostParts(there)
    for parts in (ours, theirs):
        parts.add_parts(1, pack_parts(ONE))
        parts.add_parts(2, pack_parts(TWO))
    try:
        yield here, ours, there, theirs
    finally:
        here.close()
        there.close()


def fill(place: memoryview, first: int) -> None:
    np.frombuffer(place, np.uint32)[:] = np.arange(first, first + len(place) // 4)


def values(place: memoryview) -> list[int]:
    return np.frombuffer(place, np.uint32).tolist()


def test_a_rank_contributes_its_own_part() -> None:
    with hosts() as (here, ours, there, theirs):
        fill(there.contribution(0), 100)
        there.set_done(0, 7, 1)
        frames = list(theirs.contribution(1, CONTRIBUTED))
        assert max(len(frame.payload) for frame in frames) == 4 * PIECE_ELEMENTS
        for frame in frames:
            ours.take_contribution_piece(frame)
        ours.complete(1, CONTRIBUTED)
        written = values(here.contribution(0))
        assert written[:SPLIT] == list(range(100, 100 + SPLIT))
        assert not any(written[SPLIT:])
        assert here.all_done(0, 7, ranks=(1,))
        assert not here.all_done(0, 7)


def test_a_contribution_counts_only_when_all_of_it_has_come() -> None:
    with hosts() as (here, ours, there, theirs):
        there.set_done(0, 7, 1)
        first, *_ = theirs.contribution(1, CONTRIBUTED)
        with pytest.raises(LinkError, match="has not sent all of fragment 0"):
            ours.complete(1, CONTRIBUTED)
        ours.take_contribution_piece(first)
        with pytest.raises(LinkError, match="has not sent all of fragment 0"):
            ours.complete(1, CONTRIBUTED)
        assert not here.all_done(0, 7, ranks=(1,))


def test_a_rank_that_writes_nothing_of_a_fragment_contributes_it_without_a_piece() -> None:
    with hosts() as (here, ours, _, theirs):
        message = replace(CONTRIBUTED, fragment=1)
        assert list(theirs.contribution(1, message)) == []
        ours.complete(1, message)
        assert here.all_done(1, 7, ranks=(1,))


def test_a_contribution_that_its_rank_writes_over_is_not_sent() -> None:
    with hosts() as (_, _, there, theirs):
        there.set_done(0, 7, 1)
        pieces = theirs.contribution(1, CONTRIBUTED)
        next(pieces)
        there.clear_done(0, 1)
        with pytest.raises(LinkError, match="rank 1 wrote over a contribution"):
            next(pieces)


def published(here: Slots, result: Result) -> None:
    here.begin_result(result.fragment, result.place)
    fill(here.result(result.fragment, result.place), 9)
    here.publish_result(result.fragment, result.place, result.generation)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_result_is_sent_once_and_read_when_it_is_whole(place: int) -> None:
    result = replace(RESULT, place=place)
    with hosts() as (here, ours, there, theirs):
        published(here, result)
        frames = list(ours.result(result))
        assert list(ours.result(result)) == []  # To the second rank of the host.
        assert sum(len(frame.payload) for frame in frames) == 4 * ELEMENTS
        for frame in frames[:-1]:
            theirs.take_result_piece(frame)
        with pytest.raises(LinkError, match="is not whole"):
            theirs.publish(result)
        assert there.result_generation(0, place) == 0
        theirs.take_result_piece(frames[-1])
        theirs.publish(result)
        assert there.result_generation(0, place) == 5
        assert values(there.result(0, place)) == list(range(9, 9 + ELEMENTS))


def test_the_next_result_takes_the_place_of_an_earlier_one() -> None:
    with hosts() as (here, ours, there, theirs):
        for generation in (5, 7):
            result = replace(RESULT, generation=generation)
            published(here, result)
            pieces: Iterator[Frame] = ours.result(result)
            theirs.take_result_piece(next(pieces))
            assert there.result_generation(0, 1) == 0  # A rank that reads it now finds it torn.
            for frame in pieces:
                theirs.take_result_piece(frame)
            theirs.publish(result)
            assert there.result_generation(0, 1) == generation


def test_a_result_that_is_overwritten_is_not_sent_on() -> None:
    with hosts() as (here, ours, _, _):
        published(here, RESULT)
        pieces = ours.result(RESULT)
        next(pieces)
        here.begin_result(0, 1)
        with pytest.raises(LinkError, match="result 5 of fragment 0 was overwritten"):
            next(pieces)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.CONTRIBUTED_PIECE, bytes(4 * PIECE_ELEMENTS), 1, 2, 7),
        Frame(FrameKind.CONTRIBUTED_PIECE, bytes(4), 1, 0, 7),
        Frame(FrameKind.CONTRIBUTED_PIECE, bytes(40), 1, 1, 7),
        Frame(FrameKind.CONTRIBUTED_PIECE, bytes(40), 0, 0, 7),
    ],
    ids=["no such fragment", "another size", "not its part", "another host's rank"],
)
def test_pieces_that_fit_no_part_are_refused(frame: Frame) -> None:
    with hosts() as (_, ours, _, _), pytest.raises(LinkError):
        ours.take_contribution_piece(frame)


def test_a_piece_of_no_place_is_refused() -> None:
    with hosts() as (_, _, _, theirs), pytest.raises(LinkError, match="place 3"):
        theirs.take_result_piece(Frame(FrameKind.RESULT_PIECE, b"", 3, 0, 1))


def test_step_counters_are_copied() -> None:
    with hosts() as (here, ours, _, _):
        ours.take_steps([4, 9], first=1)
        assert [here.step_of_rank(rank) for rank in range(3)] == [0, 4, 9]
