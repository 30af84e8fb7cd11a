"""Whose line is too slow to own a part: by what is usual, and not by one alone."""

from collections.abc import Sequence

from protocols.leader.line_speeds import KEPT, LinkSpeeds
from protocols.messages import log_entries as e
from protocols.types.ids import PeerId
from tests.protocols.room import Room

A, B, C, D = (PeerId(f"{name}.00000001") for name in "abcd")
MB = 1_000_000


def told(**speeds: int) -> LinkSpeeds:
    link_speeds = LinkSpeeds()
    for peer in (A, B, C, D):
        if peer[0] in speeds:
            link_speeds.told(peer, speeds[peer[0]])
    return link_speeds


def test_nothing_is_known_until_everybody_has_spoken() -> None:
    assert told(a=10 * MB, b=MB).owners((A, B, C)) == ()
    assert told(a=10 * MB, b=10 * MB, c=MB).owners((A, B, C)) == (A, B)


def test_whose_line_was_never_full_is_not_slow_nor_makes_others_slow() -> None:
    assert told(a=0, b=0, c=0).owners((A, B, C)) == (A, B, C)
    assert told(a=0, b=0, c=MB).owners((A, B, C)) == (A, B, C)
    assert told(a=0, b=10 * MB, c=MB).owners((A, B, C)) == (A, B)


def test_what_is_known_once_counts_at_once() -> None:
    link_speeds = told(a=10 * MB, b=0, c=0)
    assert link_speeds.owners((A, B, C)) == (A, B, C)
    link_speeds.told(C, MB)
    link_speeds.told(C, 0)
    assert link_speeds.owners((A, B, C)) == (A, B)


def test_of_two_each_sends_all_of_it_either_way() -> None:
    assert told(a=10 * MB, b=MB).owners((A, B)) == (A, B)


def test_half_of_the_usual_speed_is_enough() -> None:
    assert told(a=10 * MB, b=10 * MB, c=5 * MB).owners((A, B, C)) == (A, B, C)
    assert told(a=10 * MB, b=10 * MB, c=5 * MB - 1).owners((A, B, C)) == (A, B)


def test_one_alone_makes_nobody_slow() -> None:
    assert told(a=99 * MB, b=MB, c=MB).owners((A, B, C)) == (A, B, C)
    assert told(a=99 * MB, b=99 * MB, c=MB, d=MB).owners((A, B, C, D)) == (A, B)


def test_who_was_slow_has_to_be_clearly_faster() -> None:
    link_speeds = told(a=10 * MB, b=10 * MB, c=MB)
    assert link_speeds.owners((A, B, C)) == (A, B)
    link_speeds.told(C, 7 * MB)
    assert link_speeds.owners((A, B, C)) == (A, B)
    link_speeds.told(C, 8 * MB)
    assert link_speeds.owners((A, B, C)) == (A, B, C)
    for _ in range(KEPT):  # Slow once means little: it may have had nothing to send.
        assert link_speeds.owners((A, B, C)) == (A, B, C)
        link_speeds.told(C, MB)
    assert link_speeds.owners((A, B, C)) == (A, B)


def test_another_life_may_have_another_line() -> None:
    link_speeds = told(a=10 * MB, b=10 * MB, c=MB)
    assert link_speeds.owners((A, B, C)) == (A, B)
    link_speeds.forget(C)
    assert link_speeds.owners((A, B, C)) == ()
    link_speeds.told(C, 0)
    assert link_speeds.owners((A, B, C)) == (A, B, C)


# In a run -------------------------------------------------------------------------------------


def a_round(room: Room, names: str, *, slow: str = "") -> None:
    for name in names:
        room.contribute(name, line=MB if name in slow else 50 * MB)


def owners(room: Room, of: str) -> Sequence[str]:
    """Of the newest view, as this one has it."""
    (parts,) = room.log(e.View, of=of)[-1].parts
    return [room.name_of(peer) for peer in parts.owners]


def test_a_slow_line_owns_nothing_from_the_next_round_on() -> None:
    """The round in which it is known goes on as it is; every node contributes as before."""
    room = Room("abcd", parts=4)
    before = room.log(e.View)[-1]
    a_round(room, "abcd", slow="c")
    assert owners(room, "b") == ["a", "b", "d"]
    view = room.log(e.View, of="b")[-1]
    assert (view.roster, view.first_round) == (before.roster, (2,))
    a_round(room, "abcd", slow="c")
    a_round(room, "abcd", slow="c")
    assert room.rosters() == [list("abcd")] * 3
    assert [commit.view for commit in room.log(e.Commit)] == [before.view, view.view, view.view]
    for _ in range(KEPT):
        a_round(room, "abcd")
    assert owners(room, "b") == ["a", "b", "c", "d"]
    assert len(room.log(e.View)) == len(room.log(e.View, of="b")) == view.view + 1


def test_a_new_leader_changes_nothing_before_all_have_spoken() -> None:
    room = Room("abcd", parts=4)
    a_round(room, "abcd", slow="d")
    a_round(room, "abcd", slow="d")
    assert owners(room, "b") == ["a", "b", "c"]
    views = len(room.log(e.View))
    room.kill("a")
    room.wait(10)
    assert owners(room, "b") == ["b", "c", "d"], "another roster, of which nothing is known yet"
    assert len(room.log(e.View, of="b")) == views + 1
    a_round(room, "bcd", slow="d")
    assert owners(room, "b") == ["b", "c"]
