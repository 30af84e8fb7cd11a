"""Ranks take the fragments in one order, each peer from where it stands itself."""

import pytest

from protocols.interface import commands as c
from protocols.interface.events import ContributionReady
from protocols.messages import log_entries as e
from protocols.rounds.fragment_schedule import next_fragment
from tests.protocols.fragment import training
from tests.protocols.room import Room
from tests.protocols.scenes import A, C, state_digest


def test_fragments_take_turns_and_the_anchor_is_the_last() -> None:
    room = Room("a", fragments=3)
    works = [x.work for x in room.peers["a"].rounds]
    order: list[int] = []
    for _ in range(6):
        order.append(next_fragment(works, range(3)))
        room.contribute("a", fragment=order[-1])
    assert order == [1, 2, 0, 1, 2, 0]


def test_what_is_contributed_already_is_not_next_though_its_round_is_open() -> None:
    room = Room("ab", fragments=2)
    room.contribute("a", fragment=1)
    for name, fragment in (("a", 0), ("b", 1)):
        works = [x.work for x in room.peers[name].rounds]
        assert next_fragment(works, range(2)) == fragment
    assert room.last("a", c.Resume).round == 0


def test_only_fragments_that_are_left_are_asked_for() -> None:
    room = Room("a", fragments=2)
    works = [x.work for x in room.peers["a"].rounds]
    assert next_fragment(works, [0]) == 0
    with pytest.raises(AssertionError, match="after the last result"):
        next_fragment(works, [])


@pytest.mark.parametrize("applied", [False, True])
def test_a_choice_whose_round_was_committed_meanwhile_waits_for_no_other_round(
    *, applied: bool
) -> None:
    """In the next one all others would wait for us at other fragments, and we for them here."""
    peer = training()
    peer.reads(e.Attempt(1, 0, 1, 1, (A, C), (A, A, C), "b is slow"))
    chosen = peer.rounds.work.next_round
    peer.gets_results(A, C, attempt=1)
    peer.commits(A, C)
    peer.does()
    rebase = c.Resume(0, 1, "rebase", first=False, finish=False)
    made: list[c.Command] = []
    if applied:
        peer.rounds.applied(1, state_digest(1))
    late = ContributionReady(0, 50, 5, (), chosen)
    made += peer.rounds.work.contribute(late, peer.rounds.version, 2.0)
    if not applied:
        assert made == []
        made += peer.rounds.applied(1, state_digest(1))
    assert [x for x in made if isinstance(x, c.Resume)] == [rebase]
    assert peer.rounds.work.own is None
    assert not any(isinstance(x, c.Encode) for x in peer.does())
