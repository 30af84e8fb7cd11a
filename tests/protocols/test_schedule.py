"""Ranks take the fragments in one order, each peer from where it stands itself."""

import pytest

from protocols.commands import Resume
from protocols.schedule import next_fragment
from tests.protocols.room import Room


def test_fragments_take_turns_and_the_anchor_is_the_last() -> None:
    room = Room("a", fragments=3)
    rounds = room.peers["a"].rounds
    order: list[int] = []
    for _ in range(6):
        order.append(next_fragment(rounds, range(3)))
        room.contribute("a", fragment=order[-1])
    assert order == [1, 2, 0, 1, 2, 0]


def test_what_is_contributed_already_is_not_next_though_its_round_is_open() -> None:
    room = Room("ab", fragments=2)
    room.contribute("a", fragment=1)
    assert next_fragment(room.peers["a"].rounds, range(2)) == 0
    assert next_fragment(room.peers["b"].rounds, range(2)) == 1
    assert room.last("a", Resume).round == 0


def test_only_fragments_that_are_left_are_asked_for() -> None:
    room = Room("a", fragments=2)
    assert next_fragment(room.peers["a"].rounds, [0]) == 0
    with pytest.raises(AssertionError, match="after the last result"):
        next_fragment(room.peers["a"].rounds, [])
