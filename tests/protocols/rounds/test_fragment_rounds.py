"""One peer's part in rounds: results that are applied, and what becomes of the ranks' work."""

import pytest

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.rounds.fragment_rounds import KEEP_ROUNDS
from tests.protocols.fragment import Peer, only, sent, training
from tests.protocols.scenes import (
    BORDERS,
    START,
    A,
    B,
    C,
    contributor,
    result_digest,
    state_digest,
)

COUNTED = c.Resume(0, 1, "counted", first=False, finish=False)
REBASE = c.Resume(0, 1, "rebase", first=False, finish=False)


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
    assert peer.rounds.exchange.held.results, "we need it ourselves"
    peer.rounds.awaited = awaited
    over = 1 if awaited is None else 0 - KEEP_ROUNDS
    assert peer.rounds.applied(1, state_digest(1))[-1] == c.ReleaseRound(0, over)
    assert bool(peer.rounds.exchange.held.results) == (awaited == 0)


def test_work_that_was_not_counted_is_rebased_and_counted_once_later() -> None:
    peer = training()
    peer.contributes()
    peer.reads(e.Attempt(1, 0, 1, 1, (A, C), (A, A, C), "b is slow"))
    peer.gets_results(A, C, attempt=1)
    peer.commits(A, C)
    peer.does()
    assert only(c.Resume, peer.rounds.applied(1, state_digest(1))) == [REBASE]
    offered = peer.contributes(2)
    assert sent(m.ContributionOffered, offered)[0] == (
        A,
        m.ContributionOffered(peer.stamp(2), contributor(B, 2)),
    )


def test_ranks_that_wait_for_a_later_round_wait_on() -> None:
    peer = training()
    peer.contributes()
    peer.rounds.trainers_lost()
    peer.rounds.work.start_ranks(peer.rounds.version, first=False)
    peer.made(50, 5, 2.0)  # To round 2.
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


def test_new_ranks_need_steps_until_they_have_the_last_result() -> None:
    """Seed 1795900000188: their node applied the last round before they had contributed to it. They
    got the anchor's last result without samples, and could not make the step they needed."""
    peer = Peer(outer_steps=1)
    peer.trains()
    assert not peer.rounds.needs_no_steps
    peer.goes_through(A, C)
    assert peer.rounds.finished
    assert not peer.rounds.needs_no_steps
    assert only(c.Resume, peer.made(50, 5, 2.0)) == [
        c.Resume(0, 1, "anew", first=False, finish=True)
    ]
    assert peer.rounds.needs_no_steps


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


def test_little_of_the_past_is_kept() -> None:
    peer = training()
    for round_ in range(1, 30):
        peer.gets_slices(A, C, round_=round_)
        peer.goes_through(A, C)
    rounds = peer.rounds
    assert {stamp.round for stamp in rounds.exchange.held.results} == {29}
    assert rounds.exchange.held.slices == {}
    assert set(rounds.exchange.done.by_round) == {29}
