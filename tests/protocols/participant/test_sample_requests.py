"""What a peer's ranks may draw, through whole rounds: never what is in use, or another's."""

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.sample_ranges import (
    RANGES_MAX,
    SampleRange,
    Samples,
    count,
    first,
    intersection,
    subtract,
)
from tests.protocols.room import Room, is_message

EACH = 10
"""Samples that a peer's ranks draw in a round."""


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def room(names: str = "abc") -> Room:
    return Room(names, samples_ahead=8 * EACH)


def may_draw(at: Room, name: str) -> Samples:
    return at.last(name, c.Leased).samples


def train(at: Room, *names: str) -> dict[str, Samples]:
    """Each draws the first that it may, and contributes."""
    drawn = {name: first(may_draw(at, name), EACH, ranges_max=9) for name in names}
    for name in names:
        at.contribute(name, samples=drawn[name])
    return drawn


def covered(at: Room) -> dict[str, Samples]:
    """By the newest commit."""
    commit = at.log(e.Commit)[-1]
    return {
        at.name_of(term.peer): samples
        for term, samples in zip(commit.contributors, commit.samples, strict=True)
    }


def test_members_are_leased_samples_of_their_own() -> None:
    at = room()
    held = [may_draw(at, name) for name in "abc"]
    assert [count(samples) for samples in held] == [8 * EACH] * 3
    assert not any(intersection(one, two) for one in held for two in held if one is not two)


def test_a_commit_covers_what_the_steps_saw_and_the_rest_stays() -> None:
    at = room()
    before = {name: may_draw(at, name) for name in "abc"}
    drawn = train(at, *"abc")
    assert covered(at) == drawn
    for name in "abc":
        assert may_draw(at, name) == subtract(before[name], drawn[name])
    assert at.peers["b"].run_state.ledger.consumed == 3 * EACH


def test_the_leader_leases_more_in_time() -> None:
    at = room()
    for _ in range(6):
        train(at, *"abc")
        assert all(count(may_draw(at, name)) >= 4 * EACH for name in "abc")
    entries = at.log(e.Lease)
    assert len(entries) == 4, "one for each at first, then one for all"
    assert len(entries[-1].grants) == 3


def test_a_new_set_is_said_before_the_ranks_go_on() -> None:
    at = room()
    train(at, *"abc")
    told = [type(x) for x in at.given["b"] if isinstance(x, c.Leased | c.Resume)]
    assert told[-2:] == [c.Leased, c.Resume]


def left_out(at: Room) -> dict[str, Samples]:
    """C is ready and its slices never come: the others go on without it."""
    at.hold = lambda name, event: isinstance(event, v.SliceReceived) and event.sender == at.ids["c"]
    drawn = train(at, *"abc")
    at.wait(130.0)
    at.hold = lambda name, event: False
    at.held.clear()
    assert at.rosters()[-1] == ["a", "b"]
    return drawn


def test_a_rebase_carries_the_samples_to_the_next_contribution() -> None:
    at = room()
    drawn = left_out(at)
    assert "c" not in covered(at)
    assert at.last("c", c.Resume).kind == "rebase"
    assert not intersection(may_draw(at, "c"), drawn["c"]), "they are in its parameters"
    again = train(at, *"abc")
    at.wait(130.0)
    assert covered(at)["c"] == ranges(*((x.start, x.stop + EACH) for x in drawn["c"]))
    assert covered(at)["c"][0].stop == again["c"][-1].stop


def test_work_that_crashes_is_drawn_again_by_the_next_ranks() -> None:
    at = room()
    drawn = left_out(at)
    at.feed("c", v.TrainersLost("crash"))
    assert intersection(may_draw(at, "c"), drawn["c"]) == drawn["c"]


def test_what_crashed_ranks_handed_over_is_in_use_until_its_round_is_decided() -> None:
    at = room()
    drawn = train(at, "c")
    at.feed("c", v.TrainersLost("crash"))
    at.feed("c", v.TrainersReady())
    assert not intersection(may_draw(at, "c"), drawn["c"])
    train(at, "a", "b")
    assert covered(at)["c"] == drawn["c"]


def test_a_restarted_peer_draws_nothing_of_its_earlier_life() -> None:
    at = room()
    drawn = train(at, "a", "b", "c")
    at.kill("c")
    at.restart("c", incarnation=2)
    at.wait(30.0)
    held = may_draw(at, "c")
    assert count(held) == 8 * EACH
    assert not intersection(held, drawn["c"])


def test_the_samples_of_a_dead_peer_are_leased_again_once_it_is_too_late_for_it() -> None:
    at = room()
    held = may_draw(at, "c")
    at.kill("c")
    at.wait(5.0)
    ledger = at.peers["a"].run_state.ledger
    for _ in range(6):
        assert ledger.free == ()
        train(at, "a", "b")
        at.wait(1.0)
    assert ledger.free == held
    for _ in range(4):
        train(at, "a", "b")
    leased = [grant.samples for x in at.log(e.Lease)[3:] for grant in x.grants]
    assert any(intersection(samples, held) for samples in leased)
    assert ledger.again == count(held)


def test_a_member_says_what_it_wants_and_who_does_not_account_nothing() -> None:
    at = Room("ab")
    at.contribute("a")
    at.contribute("b")
    assert at.log(e.Lease) == []
    assert not any(isinstance(x, c.Leased) for x in at.given["a"])
    assert at.log(e.Commit)[-1].samples == ()


def test_a_new_leader_hears_it_too() -> None:
    at = room()
    heard: list[m.WantSamples] = []

    def listen(name: str, event: v.Event) -> bool:
        if is_message(event, m.WantSamples):
            assert isinstance(event, v.MessageReceived)
            assert isinstance(event.message, m.WantSamples)
            heard.append(event.message)
        return False

    at.hold = listen
    at.kill("a")
    at.wait(10.0)
    assert (8 * EACH, 0) in [(wants.ahead, wants.carried) for wants in heard]


def test_work_on_samples_that_are_not_ours_is_given_up() -> None:
    at = room()
    before = may_draw(at, "c")
    at.contribute("c", samples=ranges((8 * EACH * 9, 8 * EACH * 9 + 5)))
    assert at.last("c", c.Resume).kind == "anew"
    assert may_draw(at, "c") == before


def test_work_in_more_pieces_than_a_message_holds_is_given_up() -> None:
    for pieces, is_counted in ((RANGES_MAX, True), (RANGES_MAX + 1, False)):
        at = Room("abc", samples_ahead=4 * RANGES_MAX)
        start = may_draw(at, "c")[0].start
        numbers = range(start, start + 2 * pieces, 2)
        at.contribute("c", samples=ranges(*((number, number + 1) for number in numbers)))
        assert (at.peers["c"].rounds[0].work.own is not None) == is_counted
