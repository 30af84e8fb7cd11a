"""One peer's part in rounds: what it does when, once, and again after a new connection."""

from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.interface.events import ContributionReady, PartReduced, SliceReceived
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.rounds.fragment_rounds import KEEP_ROUNDS, STALENESS_ROUNDS_MAX
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import Version
from tests.protocols.fragment import Peer, only, sent, training
from tests.protocols.scenes import (
    BORDERS,
    START,
    STRANGER,
    A,
    B,
    C,
    contributor,
    info,
    manifest,
    part_digest,
    result_digest,
    state_digest,
)

COUNTED = c.Resume(0, 1, "counted", first=False, finish=False)
REBASE = c.Resume(0, 1, "rebase", first=False, finish=False)


# Contributing ---------------------------------------------------------------------------------


def test_a_contribution_is_encoded_once_and_each_slice_goes_to_its_owner() -> None:
    peer = training()
    peer.rounds.contribute(ContributionReady(0, 100, 10), 1.0)
    assert peer.does() == [c.Encode(0, 1)]
    assert peer.does() == [], "not before it is encoded"
    peer.rounds.encoded(1, manifest(B, 1))
    me, stamp = contributor(B), peer.stamp()
    assert peer.does() == [
        c.Send(A, m.Ready(stamp, me)),
        c.SendSlice(A, stamp, 0, BORDERS[0], BORDERS[1], me),
        c.SendSlice(C, stamp, 2, BORDERS[2], BORDERS[3], me),
    ]
    assert peer.does() == []


def test_an_answer_to_another_encoding_is_not_ours() -> None:
    peer = training()
    peer.rounds.contribute(ContributionReady(0, 100, 10), 1.0)
    peer.does()
    peer.rounds.encoded(2, manifest(B, 2))
    assert peer.does() == []


def test_who_is_not_in_the_roster_keeps_its_contribution_to_itself() -> None:
    peer = training()
    peer.reads(e.Attempt(1, 0, 1, 1, (A, C), (A, A, C), "b is late"))
    assert peer.contributes() == []


def test_a_new_connection_gets_what_it_needs_again_and_the_others_do_not() -> None:
    peer = training()
    peer.contributes()
    peer.rounds.forget(C)
    again = peer.does()
    assert sent(m.Ready, again) == []
    assert [x.peer for x in again if isinstance(x, c.SendSlice)] == [C]
    peer.rounds.forget(A)
    assert sent(m.Ready, peer.does()) == [(A, m.Ready(peer.stamp(), contributor(B)))]


def test_who_is_not_connected_gets_it_when_it_is() -> None:
    peer = training()
    peer.up = frozenset((A,))
    assert [
        x.peer for x in only(c.SendSlice, peer.contributes()) if isinstance(x, c.SendSlice)
    ] == [A]
    peer.up = frozenset((A, C))
    assert [x.peer for x in peer.does() if isinstance(x, c.SendSlice)] == [C]


def test_crashed_ranks_contribute_their_next_work_to_the_next_round() -> None:
    """Seed 1150: two contributions to one round, and a commit that listed the wrong one."""
    peer = training()
    peer.contributes()
    peer.rounds.trainers_lost()
    peer.rounds.start(first=False)
    peer.rounds.contribute(ContributionReady(0, 50, 5), 2.0)
    assert only(c.Encode, peer.does()) == []
    assert peer.rounds.own is not None
    assert peer.rounds.own.round == 2


def test_a_round_that_an_encoding_was_begun_for_is_used_up() -> None:
    """The late answer must not be taken for the new ranks' contribution."""
    peer = training()
    peer.rounds.contribute(ContributionReady(0, 100, 10), 1.0)
    assert peer.does() == [c.Encode(0, 1)]
    peer.rounds.trainers_lost()
    peer.rounds.start(first=False)
    peer.rounds.contribute(ContributionReady(0, 50, 5), 2.0)
    peer.rounds.encoded(1, manifest(B, 1))
    offered = peer.does()
    assert sent(m.Ready, offered)[0] == (A, m.Ready(peer.stamp(), contributor(B)))
    assert peer.rounds.own is not None
    assert (peer.rounds.own.round, peer.rounds.own.manifest) == (2, "")


def test_a_contribution_outlives_its_ranks() -> None:
    peer = training()
    peer.contributes()
    peer.rounds.trainers_lost()
    peer.reads(e.Lost(C, "x"), e.Attempt(1, 0, 1, 1, (A, B), (A, B, A), "without c"))
    again = [x for x in peer.does() if isinstance(x, c.SendSlice)]
    assert again == [
        c.SendSlice(A, peer.stamp(attempt=1), 2, BORDERS[2], BORDERS[3], contributor(B))
    ]


def test_ranks_that_are_gone_contribute_nothing() -> None:
    peer = training()
    peer.rounds.trainers_lost()
    assert peer.rounds.contribute(ContributionReady(0, 100, 10), 1.0) == []
    assert peer.rounds.own is None


# Reducing -------------------------------------------------------------------------------------


def test_an_owner_says_whose_contribution_cannot_be_averaged_and_sums_again_without_it() -> None:
    peer = training()
    peer.contributes()
    peer.gets_slices(A, C)
    peer.does()
    void = PartReduced(peer.stamp(), 1, "", (C,))
    peer.rounds.part_reduced(void)
    assert peer.does() == [c.Send(A, m.Waiting(peer.stamp(), (C,), void=True))]
    assert peer.does() == [], "once"
    peer.rounds.forget_reports()
    assert sent(m.Waiting, peer.does()) == [(A, m.Waiting(peer.stamp(), (C,), void=True))]
    peer.leaves(A, B)
    (summed,) = only(c.ReducePart, peer.does())
    assert isinstance(summed, c.ReducePart)
    assert [term.peer for term in summed.contributors] == [A, B]
    peer.rounds.part_reduced(void)
    assert sent(m.Waiting, peer.does()) == [], "of an attempt that is over"
    peer.gets_results(A, B, attempt=1)
    peer.commits(A, B)
    peer.does()
    assert peer.rounds.held.void == {}


def test_an_owner_sums_what_comes_of_all_slices_and_shares_it_with_all() -> None:
    """It waits for no slice to be whole: it begins when it knows what all of them are."""
    peer = training()
    peer.contributes()
    assert peer.gets_slices(A)
    assert only(c.ReducePart, peer.does()) == []
    assert peer.slice_begins(C)
    assert peer.rounds.missing() == (C,), "its slice may break off"
    terms = (contributor(A), contributor(B), contributor(C))
    result = (peer.stamp(), 1, terms)
    assert peer.does() == [
        c.ReducePart(peer.stamp(), 1, BORDERS[1], BORDERS[2], terms),
        c.SendResult(A, *result),
        c.SendResult(C, *result),
    ]
    assert peer.gets_slices(C)
    assert peer.rounds.missing() == (A, C), "their parts of the result"
    peer.rounds.part_reduced(PartReduced(peer.stamp(), 1, part_digest(1)))
    assert peer.does() == []
    peer.rounds.forget(A)
    assert only(c.SendResult, peer.does()) == [c.SendResult(A, *result)]


def test_another_contribution_of_the_same_peer_does_not_begin() -> None:
    """A recomputed slice must not be mixed with slices of the first one."""
    peer = training()
    peer.contributes()
    assert peer.slice_begins(C)
    assert not peer.slice_begins(C, made_in=2)
    assert peer.gets_slices(A)
    assert not peer.slice_begins(A, made_in=2)


def test_a_joiner_receives_results_of_rounds_in_flight() -> None:
    peer = training()
    peer.contributes()
    peer.gets_slices(A, C)
    peer.does()
    peer.reads(e.Cut(info(STRANGER, 3), (A,), (Version(0, 0, START),)))
    assert peer.does() == [], "it is not connected yet"
    peer.up |= {STRANGER}
    shared = [x for x in peer.does() if isinstance(x, c.SendResult)]
    assert [(x.peer, x.part) for x in shared] == [(STRANGER, 1)]


def test_a_lost_owners_part_is_summed_again_from_kept_slices() -> None:
    """Only the part that has a new owner travels again."""
    peer = training()
    peer.contributes()
    peer.gets_slices(A, C)
    peer.does()
    peer.rounds.part_reduced(PartReduced(peer.stamp(), 1, part_digest(1)))
    peer.does()
    peer.reads(e.Lost(C, "x"), e.Attempt(1, 0, 1, 1, (A, B), (A, B, B), "without c"))
    again = peer.does()
    assert only(c.SendSlice, again) == []
    stamp, terms = peer.stamp(attempt=1), (contributor(A), contributor(B))
    assert only(c.ReducePart, again) == [c.ReducePart(stamp, 1, BORDERS[1], BORDERS[2], terms)]
    assert peer.gets_slices(A, part=2, attempt=1)
    made = c.ReducePart(stamp, 2, BORDERS[2], BORDERS[3], terms)
    assert peer.does() == [made, c.SendResult(A, stamp, 2, terms)]


def test_a_sum_of_a_stale_attempt_is_not_shared() -> None:
    peer = training()
    peer.contributes()
    peer.gets_slices(A, C)
    peer.does()
    peer.reads(e.Attempt(1, 0, 1, 1, (A, B), (A, B, A), "c is slow"))
    peer.does()
    peer.rounds.part_reduced(PartReduced(peer.stamp(), 1, part_digest(1)))
    assert only(c.SendResult, peer.does()) == []


@pytest.mark.parametrize("round_", [0, 1, 4, 9])
def test_slices_of_rounds_that_are_not_open_are_not_kept(round_: int) -> None:
    peer = training()
    peer.goes_through(A, C)
    assert not peer.gets_slices(C, round_=round_)
    assert peer.gets_slices(C, round_=2)
    assert peer.gets_slices(C, round_=3), "of a peer that applied the next commit before us"


def test_somebody_elses_contribution_is_not_taken() -> None:
    peer = training()
    with pytest.raises(RemoteProtocolError, match="another peer's"):
        peer.rounds.received(SliceReceived(A, peer.stamp(), 1, contributor(C)))


# Holding and applying -------------------------------------------------------------------------


def test_hold_needs_every_part_and_every_earlier_round() -> None:
    peer = training()
    peer.gets_result(A, 0, A, B, C)
    assert sent(m.Hold, peer.does()) == []
    peer.gets_results(A, B, C)
    terms = tuple(contributor(x) for x in (A, B, C))
    assert sent(m.Hold, peer.does()) == [(A, m.Hold(peer.stamp(), result_digest(terms, 3)))]
    assert sent(m.Hold, peer.does()) == []
    peer.rounds.forget(A)
    assert sent(m.Hold, peer.does()) != [], "the leader may have missed it"
    peer.commits(A, B, C)
    peer.does()
    peer.gets_results(A, B, C, round_=2)
    assert sent(m.Hold, peer.does()) == [], "round 1 is not applied yet"
    peer.rounds.applied(1, state_digest(1))
    after = peer.does()
    assert sent(m.Hold, after) != []
    haves = [x for x in after if isinstance(x, c.Send) and isinstance(x.message, m.Have)]
    assert after.index(haves[0]) == 0, "whoever holds a round has reported the state before"


def test_only_a_committed_result_is_applied_and_only_the_committed_bytes() -> None:
    peer = training()
    peer.gets_results(A, B, C)
    assert only(c.ApplyRound, peer.does()) == []
    peer.commits(A, B, C)
    assert peer.does() == [
        c.DropSlices(0, 1),
        c.ApplyRound(peer.stamp(), BORDERS, counted=False),
    ]
    assert peer.does() == [], "once"


def test_ranks_whose_work_was_counted_start_from_the_new_state() -> None:
    peer = training()
    peer.contributes()
    peer.gets_results(A, B, C)
    peer.does()
    peer.commits(A, B, C)
    assert only(c.ApplyRound, peer.does()) == [c.ApplyRound(peer.stamp(), BORDERS, counted=True)]
    assert peer.rounds.applied(1, state_digest(1)) == [COUNTED, c.ReleaseRound(0, 1 - KEEP_ROUNDS)]


@pytest.mark.parametrize("awaited", [None, 0])
def test_a_result_that_all_hold_goes_with_its_step(awaited: int | None) -> None:
    """But where a state comes that the step has to be taken from again."""
    peer = training()
    peer.gets_results(A, B, C)
    peer.does()
    peer.commits(A, B, C, held_by_all=True)
    peer.does()
    assert peer.rounds.held.results, "we need it ourselves"
    peer.rounds.awaited = awaited
    over = 1 if awaited is None else 0 - KEEP_ROUNDS
    assert peer.rounds.applied(1, state_digest(1))[-1] == c.ReleaseRound(0, over)
    assert bool(peer.rounds.held.results) == (awaited == 0)


def test_work_that_was_not_counted_is_rebased_and_counted_once_later() -> None:
    peer = training()
    peer.contributes()
    peer.reads(e.Attempt(1, 0, 1, 1, (A, C), (A, A, C), "b is slow"))
    peer.gets_results(A, C, attempt=1)
    peer.commits(A, C)
    peer.does()
    assert only(c.Resume, peer.rounds.applied(1, state_digest(1))) == [REBASE]
    offered = peer.contributes(2)
    assert sent(m.Ready, offered)[0] == (A, m.Ready(peer.stamp(2), contributor(B, 2)))


def test_ranks_that_wait_for_a_later_round_wait_on() -> None:
    peer = training()
    peer.contributes()
    peer.rounds.trainers_lost()
    peer.rounds.start(first=False)
    peer.rounds.contribute(ContributionReady(0, 50, 5), 2.0)  # To round 2.
    made = peer.goes_through(A, B, C)
    assert only(c.Resume, made) == []
    assert only(c.Encode, made) == [c.Encode(0, 2)]


def test_the_last_round_lets_everybody_go() -> None:
    peer = Peer(outer_steps=1)
    peer.trains()
    peer.contributes()
    peer.gets_results(A, B, C)
    peer.does()
    peer.commits(A, B, C)
    peer.does()
    made = peer.rounds.applied(1, state_digest(1))
    assert only(c.Resume, made) == [c.Resume(0, 1, "counted", first=False, finish=True)]
    assert peer.rounds.finished


def test_ranks_that_came_to_the_end_go_on_when_the_run_goes_back() -> None:
    """Seed 3909106542: another fragment had rounds left, and its state was nobody's."""
    peer = Peer(outer_steps=1)
    peer.trains()
    peer.contributes()
    peer.goes_through(A, B, C)
    assert peer.rounds.finished
    peer.rounds.restored()
    made = peer.rounds.state_received(0, START)
    assert only(c.Resume, made) == [c.Resume(0, 0, "anew", first=False, finish=False)]


def test_work_that_is_too_old_is_given_up() -> None:
    peer = training()
    for _ in range(STALENESS_ROUNDS_MAX):
        peer.goes_through(A, C)
    assert peer.rounds.contribute(ContributionReady(0, 9, 9), 0.0) == [], "old, but not too old"
    stale = training()
    for _ in range(STALENESS_ROUNDS_MAX + 1):
        stale.goes_through(A, C)
    round_ = STALENESS_ROUNDS_MAX + 1
    assert stale.rounds.contribute(ContributionReady(0, 9, 9), 0.0) == [
        c.Resume(0, round_, "anew", first=False, finish=False)
    ]


def test_work_that_is_too_old_for_the_open_round_waits_for_the_next_state() -> None:
    """Seeds 304656761, 304656820: ranks started from an old state while a newer one was under
    way, and a round six later counted what they did."""
    peer = training()
    for _ in range(STALENESS_ROUNDS_MAX + 1):
        peer.leaves(A, C)
        peer.commits(A, C)  # Of none of them have we the result.
    assert peer.rounds.contribute(ContributionReady(0, 9, 9), 0.0) == []
    assert only(c.Encode, peer.does()) == []
    assert only(c.Resume, peer.rounds.state_received(3, state_digest(3))) == [
        c.Resume(0, 3, "rebase", first=False, finish=False)
    ]
    peer.rounds.contribute(ContributionReady(0, 9, 9), 0.0)
    assert only(c.Encode, peer.does()) == [c.Encode(0, STALENESS_ROUNDS_MAX + 2)]


def test_little_of_the_past_is_kept() -> None:
    peer = training()
    for round_ in range(1, 30):
        peer.gets_slices(A, C, round_=round_)
        peer.goes_through(A, C)
    rounds = peer.rounds
    assert {stamp.round for stamp in rounds.held.results} == {29}
    assert rounds.held.slices == {}
    assert set(rounds.done.by_round) == {29}


# What others do -------------------------------------------------------------------------------


def test_early_ranks_contribute_when_others_wait_for_them() -> None:
    peer = training()
    assert not peer.rounds.others_wait
    peer.rounds.hurried = peer.stamp(2)
    assert not peer.rounds.others_wait, "of a later round"
    peer.rounds.hurried = replace(peer.stamp(), lineage=7)
    assert not peer.rounds.others_wait, "of a lineage that is over"
    peer.rounds.hurried = peer.stamp()
    assert peer.rounds.others_wait
    peer.reads(e.Attempt(1, 0, 1, 1, (A, C), (A, A, C), "b is late"))
    assert not peer.rounds.others_wait, "we are not in the roster"
