"""The exchange of a round: what is sent when, once, and again after a new connection."""

import pytest

from protocols.interface import commands as c
from protocols.interface.events import PartReduced, SliceReceived
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import Version
from tests.protocols.fragment import only, sent, training
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
)


def test_a_contribution_is_encoded_once_and_each_slice_goes_to_its_owner() -> None:
    peer = training()
    peer.made(100, 10, 1.0)
    assert peer.does() == [c.Encode(0, 1)]
    assert peer.does() == [], "not before it is encoded"
    peer.rounds.work.encoded(1, manifest(B, 1))
    me, stamp = contributor(B), peer.stamp()
    assert peer.does() == [
        c.Send(A, m.ContributionOffered(stamp, me)),
        c.SendSlice(A, stamp, 0, BORDERS[0], BORDERS[1], me),
        c.SendSlice(C, stamp, 2, BORDERS[2], BORDERS[3], me),
    ]
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
    assert sent(m.ContributionOffered, again) == []
    assert [x.peer for x in again if isinstance(x, c.SendSlice)] == [C]
    peer.rounds.forget(A)
    assert sent(m.ContributionOffered, peer.does()) == [
        (A, m.ContributionOffered(peer.stamp(), contributor(B)))
    ]


def test_who_is_not_connected_gets_it_when_it_is() -> None:
    peer = training()
    peer.up = frozenset((A,))
    assert [
        x.peer for x in only(c.SendSlice, peer.contributes()) if isinstance(x, c.SendSlice)
    ] == [A]
    peer.up = frozenset((A, C))
    assert [x.peer for x in peer.does() if isinstance(x, c.SendSlice)] == [C]


def test_a_contribution_outlives_its_ranks() -> None:
    peer = training()
    peer.contributes()
    peer.rounds.trainers_lost()
    peer.reads(e.Lost(C, "x"), e.Attempt(1, 0, 1, 1, (A, B), (A, B, A), "without c"))
    again = [x for x in peer.does() if isinstance(x, c.SendSlice)]
    assert again == [
        c.SendSlice(A, peer.stamp(attempt=1), 2, BORDERS[2], BORDERS[3], contributor(B))
    ]


def test_an_owner_says_whose_contribution_cannot_be_averaged_and_sums_again_without_it() -> None:
    peer = training()
    peer.contributes()
    peer.gets_slices(A, C)
    peer.does()
    void = PartReduced(peer.stamp(), 1, "", (C,))
    peer.rounds.exchange.part_reduced(void)
    assert peer.does() == [c.Send(A, m.WaitsForPeers(peer.stamp(), (C,), void=True))]
    assert peer.does() == [], "once"
    peer.rounds.forget_reports()
    assert sent(m.WaitsForPeers, peer.does()) == [
        (A, m.WaitsForPeers(peer.stamp(), (C,), void=True))
    ]
    peer.leaves(A, B)
    (summed,) = only(c.ReducePart, peer.does())
    assert isinstance(summed, c.ReducePart)
    assert [term.peer for term in summed.contributors] == [A, B]
    peer.rounds.exchange.part_reduced(void)
    assert sent(m.WaitsForPeers, peer.does()) == [], "of an attempt that is over"
    peer.gets_results(A, B, attempt=1)
    peer.commits(A, B)
    peer.does()
    assert peer.rounds.exchange.held.void == {}


def test_an_owner_sums_what_comes_of_all_slices_and_shares_it_with_all() -> None:
    """It waits for no slice to be whole: it begins when it knows what all of them are."""
    peer = training()
    peer.contributes()
    assert peer.gets_slices(A)
    assert only(c.ReducePart, peer.does()) == []
    assert peer.slice_begins(C)
    assert peer.rounds.exchange.missing() == (C,), "its slice may break off"
    terms = (contributor(A), contributor(B), contributor(C))
    result = (peer.stamp(), 1, terms)
    assert peer.does() == [
        c.ReducePart(peer.stamp(), 1, BORDERS[1], BORDERS[2], terms),
        c.SendResult(A, *result),
        c.SendResult(C, *result),
    ]
    assert peer.gets_slices(C)
    assert peer.rounds.exchange.missing() == (A, C), "their parts of the result"
    peer.rounds.exchange.part_reduced(PartReduced(peer.stamp(), 1, part_digest(1)))
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
    peer.rounds.exchange.part_reduced(PartReduced(peer.stamp(), 1, part_digest(1)))
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
    peer.rounds.exchange.part_reduced(PartReduced(peer.stamp(), 1, part_digest(1)))
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
        peer.receives(SliceReceived(A, peer.stamp(), 1, contributor(C)))
