"""Slow rounds are reported, and results that do not come are fetched."""

from dataclasses import replace

from protocols.interface import commands as c
from protocols.interface.events import PartReduced, ResultReceived
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.rounds.contributions import OURS, Holdings, PartResult
from protocols.rounds.retries import FETCH_RETRY_S, FETCHES_MAX, ResultRequest, StallReport
from protocols.state.round_plan import RoundPlan
from protocols.state.run_state import KEEP_COMMITS
from protocols.types.ids import FragmentParts, PeerId, Stamp
from tests.protocols.fragment import only, sent, training
from tests.protocols.room import RULES, Room
from tests.protocols.scenes import A, B, C, contributor, part_digest


def test_an_open_rounds_result_is_asked_for_now_and_then_until_it_is_here() -> None:
    asking, held, stamp = ResultRequest(after_s=30.0), Holdings(), Stamp(1, 2, 1, 0, 1, 0)
    plan = RoundPlan(stamp, (A, B), FragmentParts((A, B), (0, 4, 8)))

    def asks(now: float, *connected: PeerId) -> list[c.Command]:
        return asking.ask(now, plan, held=held, connected=set(connected))

    assert asks(5.0, A, B) == []
    assert asking.at == 35.0
    assert asks(35.0, A, C) == [c.Send(A, m.Fetch(stamp, 0))], "B is not connected"
    held.add_result(stamp, 0, PartResult((), part_digest(0)))
    assert asks(64.9, A, B) == []
    assert asks(65.0, A, B) == [c.Send(B, m.Fetch(stamp, 1))]
    held.add_result(stamp, 1, PartResult((), part_digest(1)))
    assert (asks(95.0, A, B), asking.at) == ([], float("inf"))
    held.drop_results(1)
    assert (asks(100.0, A, B), asking.at) == ([], 130.0)
    assert (asking.ask(130.0, None, held=held, connected={A}), asking.at) == ([], float("inf"))


# Complaints -----------------------------------------------------------------------------------


def test_a_slow_round_is_reported_with_whom_it_waits_for() -> None:
    peer = training()
    peer.rounds.exchange.stall.after_s = 30.0
    peer.contributes()
    assert peer.rounds.deadline == 30.0
    peer.gets_slices(A)
    peer.now = 29.9
    assert peer.does() == []
    peer.now = 30.0
    assert peer.does() == [c.Send(A, m.WaitsForPeers(peer.stamp(), (C,)))]
    assert peer.rounds.deadline == 60.0, "a deadline in the past would be a busy loop"
    assert peer.does() == []
    peer.now = 40.0
    peer.reads(e.Attempt(1, 0, 1, 1, (A, B), (A, B, A), "c is slow"))
    peer.does()
    assert peer.rounds.deadline == 70.0, "another attempt, another clock"


def test_an_owner_waits_for_slices_first_and_then_for_results() -> None:
    peer = training()
    assert peer.rounds.exchange.missing() == (A, C)
    peer.contributes()
    peer.gets_slices(A, C)
    assert peer.rounds.exchange.missing() == (A, C), "their parts"
    peer.gets_result(A, 0, A, B, C)
    assert peer.rounds.exchange.missing() == (C,)
    peer.gets_results(A, B, C)
    assert peer.rounds.exchange.missing() == ()


def test_a_complaint_ends_with_its_round() -> None:
    """Seed 1069: the deadline of a round that our crashed ranks had left stayed in the past."""
    peer = training()
    peer.contributes()
    assert peer.rounds.deadline < float("inf")
    peer.goes_through(A, B, C)
    assert peer.rounds.deadline == float("inf")


def test_without_a_leader_nobody_complains() -> None:
    peer = training()
    peer.contributes()
    peer.up = frozenset((C,))
    peer.does()
    assert peer.rounds.deadline == float("inf")


def test_the_one_that_was_late_is_not_left_out_for_the_one_that_hangs() -> None:
    """All complained about D while it was late. When C, whose part nobody gets, is to be left out,
    they wait for C."""
    rules = replace(RULES, round_grace_s=55.0)
    assert rules.reduction_timeout_s / 2 < rules.round_grace_s
    room = Room("abcd", parts=4, rules=rules)
    for name in "abc":
        room.contribute(name)
    room.wait(50.0)
    hung = room.ids["c"]
    room.hold = lambda name, event: (
        (name == "c" and isinstance(event, PartReduced))
        or (isinstance(event, ResultReceived) and event.sender == hung)
    )
    room.contribute("d")
    room.wait(rules.reduction_timeout_s - 1.0)
    assert room.log(e.Attempt) == []
    room.wait(2.0)
    [attempt] = room.log(e.Attempt)
    assert attempt.why == "no result in time because of c"
    assert room.rosters() == [["a", "b", "d"]]


def test_the_next_leader_is_told_as_well_whom_we_wait_for() -> None:
    """Between the two there is no moment without a leader in which the complaint is forgotten."""
    peer = training()
    peer.contributes()
    peer.now = 30.0
    assert sent(m.WaitsForPeers, peer.does()) == [(A, m.WaitsForPeers(peer.stamp(), (A, C)))]
    peer.rounds.forget_reports()
    peer.now = 60.0
    made = peer.rounds.advance(peer.now, peer.up, C)
    assert sent(m.WaitsForPeers, made) == [(C, m.WaitsForPeers(peer.stamp(), (A, C)))]


def test_a_stall_is_seen_now_and_then_in_each_attempt() -> None:
    one, other = training().stamp(), training().stamp(attempt=1)
    stall = StallReport(after_s=5.0)
    assert not stall.is_slow(one, 0.0)
    assert not stall.is_slow(one, 4.9)
    assert stall.is_slow(one, 5.0)
    assert not stall.is_slow(one, 9.9)
    assert stall.is_slow(one, 99.0)
    assert not stall.is_slow(other, 100.0)
    assert stall.is_slow(other, 105.0)
    assert not stall.is_slow(None, 200.0)
    assert stall.at == float("inf")


# Results of an attempt that was not read yet -----------------------------------------------------


def test_what_came_from_somebody_else_than_its_owner_makes_room_for_the_owners() -> None:
    """C has read less than it seems: it owns the last part, and gives us those of A and ours."""
    peer = training()
    peer.contributes()
    later = peer.stamp(attempt=1)
    for part in range(3):
        assert peer.gets_result(C, part, A, B, stamp=later), "nobody knows yet whose it is"
    assert not peer.gets_result(A, 0, A, B, C, stamp=later), "the first one stays"
    peer.reads(e.Attempt(1, 0, 1, 1, (A, B, C), (A, B, C), "?"))
    made = peer.does()
    usurped = [c.DropResult(later, part) for part in (0, 1)]
    assert only(c.DropResult, made) == usurped
    assert sent(m.Fetch, made) == [(A, m.Fetch(later, 0))], "and nobody asks us"
    assert peer.gets_result(A, 0, A, B, C, stamp=later)
    assert not peer.gets_result(C, 0, A, B, stamp=later)
    peer.gets_slices(A, C, attempt=1)
    sums = only(c.ReducePart, peer.does())
    peer.rounds.exchange.part_reduced(PartReduced(later, 1, part_digest(1)))
    assert sums != []
    held = peer.rounds.exchange.held.results[later]
    assert {part: x.sender for part, x in held.items()} == {0: A, 1: OURS, 2: C}


def test_our_own_sum_is_begun_after_what_stood_in_its_place_is_dropped() -> None:
    """The shell has one place for both."""
    peer = training()
    peer.contributes()
    peer.gets_slices(A, C)
    peer.does()
    peer.gets_result(C, 1, A, B, stamp=peer.stamp(attempt=1))
    peer.leaves(A, B)
    made = [x for x in peer.does() if isinstance(x, c.DropResult | c.ReducePart)]
    assert [type(x) for x in made] == [c.DropResult, c.ReducePart]


def test_what_an_owner_gave_us_early_stays() -> None:
    peer = training()
    peer.contributes()
    assert peer.gets_result(A, 0, A, B, stamp=peer.stamp(attempt=1))
    peer.leaves(A, B)
    made = peer.does()
    assert (only(c.DropResult, made), sent(m.Fetch, made)) == ([], [])
    assert peer.rounds.exchange.held.usurped is None


# Fetching -------------------------------------------------------------------------------------


def test_a_result_that_does_not_come_is_fetched_from_one_holder_after_the_other() -> None:
    peer = training()
    peer.gets_result(A, 0, A, C)
    peer.commits(A, B, C)
    assert peer.does() == [], "it is under way"
    asked: list[PeerId] = []
    for _ in range(4):
        peer.now = peer.rounds.deadline
        fetches = sent(m.Fetch, peer.does())
        asked += {to for to, _ in fetches}
        assert {x.part for _, x in fetches if isinstance(x, m.Fetch)} == {1, 2}
    assert set(asked) == {A, C}


def test_a_result_that_is_not_the_committed_one_is_thrown_away_whole() -> None:
    """In the shell too: it keeps the first bytes of each part."""
    peer = training()
    peer.gets_results(A, C)  # Sums of other terms than the commit says.
    peer.commits(A, B, C)
    peer.does()
    peer.now = FETCH_RETRY_S
    again = peer.does()
    assert only(c.ReleaseRound, again) == [c.ReleaseRound(0, 1)]
    assert [x.part for _, x in sent(m.Fetch, again) if isinstance(x, m.Fetch)] == [0, 1, 2]
    for part in range(3):
        assert peer.gets_result(C, part, A, B, C), "anybody may serve what is committed"
    assert only(c.ApplyRound, peer.does()) != []
    assert peer.rounds.deadline == float("inf")


def test_what_is_fetched_is_served_byte_for_byte() -> None:
    peer = training()
    peer.goes_through(A, C)
    stamp, terms = peer.stamp(attempt=1), (contributor(A), contributor(C))
    assert peer.rounds.exchange.fetched(C, stamp, 2) == [c.SendResult(C, stamp, 2, terms)]
    assert peer.rounds.exchange.fetched(C, stamp, 3) == []
    assert peer.rounds.exchange.fetched(C, peer.stamp(), 2) == [], (
        "of an attempt that came to nothing"
    )


def test_after_enough_fetches_only_a_transfer_helps() -> None:
    peer = training()
    peer.commits(A, B, C)
    for _ in range(FETCHES_MAX + 1):
        assert not peer.rounds.behind
        peer.does()
        peer.now = peer.rounds.deadline
        peer.does()
    assert peer.rounds.behind


def test_whose_next_commit_is_forgotten_is_behind() -> None:
    peer = training()
    for _ in range(KEEP_COMMITS):
        peer.commits(A, B, C)
    assert not peer.rounds.behind
    peer.commits(A, B, C)
    assert peer.rounds.behind


def test_what_was_sent_before_we_could_get_it_is_fetched_at_once() -> None:
    """A later result is here: results are sent in the order of the rounds."""
    peer = training()
    peer.commits(A, B, C)
    assert peer.does() == [], "it may be on its way"
    peer = training()
    late = peer.stamp(round_=2)
    peer.commits(A, B, C)
    peer.rounds.exchange.held.add_result(late, 0, PartResult((contributor(A),), part_digest(0)))
    assert sent(m.Fetch, peer.does()) != []


def test_what_peers_do_not_keep_any_more_is_asked_of_each_only_once() -> None:
    """Seen: a peer that returned asked seven times, and the others waited for it."""
    peer = training()
    for _ in range(3):
        peer.commits(A, B, C)
    tries = 0
    while not peer.rounds.behind:
        peer.does()
        assert peer.rounds.deadline > peer.now, "a busy loop"
        peer.now = max(peer.rounds.deadline, peer.now)
        tries += 1
    assert tries <= 4
