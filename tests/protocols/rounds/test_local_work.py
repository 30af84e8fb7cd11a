"""The ranks' work: to which round it is contributed, and what becomes of it."""

from dataclasses import replace

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state.run_state import STALENESS_ROUNDS_MAX
from tests.protocols.fragment import only, sent, training
from tests.protocols.scenes import (
    A,
    B,
    C,
    contributor,
    manifest,
    state_digest,
)


def test_an_answer_to_another_encoding_is_not_ours() -> None:
    peer = training()
    peer.made(100, 10, 1.0)
    peer.does()
    peer.rounds.work.encoded(2, manifest(B, 2))
    assert peer.does() == []


def test_crashed_ranks_contribute_their_next_work_to_the_next_round() -> None:
    """Seed 1150: two contributions to one round, and a commit that listed the wrong one."""
    peer = training()
    peer.contributes()
    peer.rounds.trainers_lost()
    peer.rounds.work.start_ranks(peer.rounds.version, first=False)
    peer.made(50, 5, 2.0)
    assert only(c.Encode, peer.does()) == []
    assert peer.rounds.work.own is not None
    assert peer.rounds.work.own.round == 2


def test_a_round_that_an_encoding_was_begun_for_is_used_up() -> None:
    """The late answer must not be taken for the new ranks' contribution."""
    peer = training()
    peer.made(100, 10, 1.0)
    assert peer.does() == [c.Encode(0, 1)]
    peer.rounds.trainers_lost()
    peer.rounds.work.start_ranks(peer.rounds.version, first=False)
    peer.made(50, 5, 2.0)
    peer.rounds.work.encoded(1, manifest(B, 1))
    offered = peer.does()
    assert sent(m.ContributionOffered, offered)[0] == (
        A,
        m.ContributionOffered(peer.stamp(), contributor(B)),
    )
    assert peer.rounds.work.own is not None
    assert (peer.rounds.work.own.round, peer.rounds.work.own.manifest) == (2, "")


def test_ranks_that_are_gone_contribute_nothing() -> None:
    peer = training()
    peer.rounds.trainers_lost()
    assert peer.made(100, 10, 1.0) == []
    assert peer.rounds.work.own is None


def test_work_that_is_too_old_is_given_up() -> None:
    peer = training()
    for _ in range(STALENESS_ROUNDS_MAX):
        peer.goes_through(A, C)
    assert peer.made(9, 9, 0.0) == [], "old, but not too old"
    stale = training()
    for _ in range(STALENESS_ROUNDS_MAX + 1):
        stale.goes_through(A, C)
    round_ = STALENESS_ROUNDS_MAX + 1
    assert stale.made(9, 9, 0.0) == [c.Resume(0, round_, "anew", first=False, finish=False)]


def test_work_that_is_too_old_for_the_open_round_waits_for_the_next_state() -> None:
    """Seeds 304656761, 304656820: ranks started from an old state while a newer one was under
    way, and a round six later counted what they did."""
    peer = training()
    for _ in range(STALENESS_ROUNDS_MAX + 1):
        peer.leaves(A, C)
        peer.commits(A, C)  # Of none of them have we the result.
    assert peer.made(9, 9, 0.0) == []
    assert only(c.Encode, peer.does()) == []
    assert only(c.Resume, peer.rounds.state_received(3, state_digest(3))) == [
        c.Resume(0, 3, "rebase", first=False, finish=False)
    ]
    peer.made(9, 9, 0.0)
    assert only(c.Encode, peer.does()) == [c.Encode(0, STALENESS_ROUNDS_MAX + 2)]


def test_early_ranks_contribute_when_others_wait_for_them() -> None:
    peer = training()
    assert not peer.rounds.work.others_wait
    peer.rounds.work.hurried = peer.stamp(2)
    assert not peer.rounds.work.others_wait, "of a later round"
    peer.rounds.work.hurried = replace(peer.stamp(), lineage=7)
    assert not peer.rounds.work.others_wait, "of a lineage that is over"
    peer.rounds.work.hurried = peer.stamp()
    assert peer.rounds.work.others_wait
    peer.reads(e.Attempt(1, 0, 1, 1, (A, C), (A, A, C), "b is late"))
    assert not peer.rounds.work.others_wait, "we are not in the roster"
