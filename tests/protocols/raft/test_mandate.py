"""What proves that a peer leads a term."""

import hashlib
from dataclasses import replace

import pytest

from protocols.messages import log_entries as e
from protocols.raft.mandate import ChangeStatement, Electorate, VoteStatement, extended
from protocols.types.ids import PeerId, Version
from protocols.types.limits import MANDATE_MAX
from tests.protocols.scenes import SEALS, A, B, C, D, sealed

RUN = 7
E = PeerId("e.00000004")


def key_of(peer: PeerId) -> str:
    return hashlib.sha256(peer.encode()).hexdigest()


def known(*voters: PeerId, term: int = 3, leader: PeerId | None = A) -> Electorate:
    """What a peer knows that has applied ten entries."""
    keys = {peer: key_of(peer) for peer in voters}
    return Electorate(RUN, 10, voters, keys, term, leader)


def ballot(voter: PeerId, term: int, candidate: PeerId, *, by: PeerId | None = None) -> e.Ballot:
    said = VoteStatement(term, candidate).content(RUN)
    return e.Ballot(voter, sealed(key_of(by or voter), said))


def election(index: int, term: int, leader: PeerId, *voters: PeerId) -> e.LogEntry:
    votes = tuple(ballot(voter, term, leader) for voter in voters)
    return e.LogEntry(index, term, e.Elected(leader, votes))


def change(index: int, term: int, body: e.Entry, *, by: PeerId) -> e.LogEntry:
    entry = e.LogEntry(index, term, body)
    return replace(entry, signature=sealed(key_of(by), ChangeStatement(entry).content(RUN)))


def gains(peer: PeerId) -> e.Voter:
    return e.Voter(peer, votes=True, why="", key=key_of(peer))


def leader_by(electorate: Electorate, *entries: e.LogEntry, after: int = 0) -> str:
    """The leader of the last term, as the entries prove; "" if one of them proves nothing."""
    mandate = e.Mandate(after, entries)
    found = electorate.follow(mandate, verify=SEALS.verify)
    return f"{electorate.leader} {electorate.term}" if found else ""


# Elections --------------------------------------------------------------------------------------


def test_the_votes_of_a_majority_elect() -> None:
    assert leader_by(known(A, B, C), election(11, 4, C, B, C)) == f"{C} 4"
    assert leader_by(known(A, B, C), election(11, 4, C, C)) == ""
    assert leader_by(known(A, B, C, D), election(11, 4, C, B, C)) == ""


@pytest.mark.parametrize(
    "votes",
    [
        (ballot(C, 4, C), ballot(C, 4, C)),
        (ballot(C, 4, C), ballot(D, 4, C)),
        (ballot(C, 4, C), ballot(B, 4, C, by=C)),
        (ballot(C, 4, C), ballot(B, 5, C)),
        (ballot(C, 4, C), ballot(B, 4, A)),
        (ballot(C, 4, C), e.Ballot(B, b"")),
    ],
    ids=["one vote twice", "no voter", "another key", "another term", "another peer", "unsigned"],
)
def test_other_votes_do_not_count(votes: tuple[e.Ballot, ...]) -> None:
    elected = e.LogEntry(11, 4, e.Elected(C, votes))
    assert leader_by(known(A, B, C), elected) == ""


def test_a_term_has_one_election() -> None:
    assert leader_by(known(A, B, C), election(11, 3, C, B, C)) == ""


def test_votes_of_another_run_do_not_count() -> None:
    electorate = known(A, B, C)
    electorate.run = RUN + 1
    assert leader_by(electorate, election(11, 4, C, B, C)) == ""


# Changes of the voters --------------------------------------------------------------------------


def test_a_leader_changes_the_voters_of_later_elections() -> None:
    story = [
        change(11, 3, gains(D), by=A),
        change(12, 3, gains(E), by=A),
        change(13, 3, e.Lost(B, ""), by=A),
        election(20, 4, D, D, E, C),
    ]
    assert leader_by(known(A, B, C), *story) == f"{D} 4"
    assert leader_by(known(A, B, C), story[-1]) == "", "one vote of three known voters"


@pytest.mark.parametrize(
    ("term", "by"), [(3, C), (4, A), (2, A)], ids=["not the leader", "later term", "earlier term"]
)
def test_no_other_change_counts(term: int, by: PeerId) -> None:
    assert leader_by(known(A, B, C), change(11, term, e.Lost(A, ""), by=by)) == ""


def test_an_elected_peer_without_a_known_key_changes_nothing() -> None:
    story = [election(11, 4, E, A, B), change(12, 4, gains(D), by=E)]
    assert leader_by(known(A, B, C), story[0]) == f"{E} 4"
    assert leader_by(known(A, B, C), *story) == ""


def test_the_signature_is_of_the_whole_entry() -> None:
    entry = change(11, 3, gains(D), by=A)
    other = replace(entry, body=replace(gains(D), key=key_of(E)))
    assert leader_by(known(A, B), other) == ""
    assert leader_by(known(A, B), replace(entry, index=12)) == ""


def test_what_a_peer_has_applied_needs_no_proof() -> None:
    old = e.LogEntry(9, 3, e.Lost(C, ""))
    assert leader_by(known(A, B), old, election(11, 4, B, A, B)) == f"{B} 4"


def test_a_proof_that_begins_too_late_proves_nothing() -> None:
    new = election(20, 4, B, A, B)
    assert leader_by(known(A, B), new, after=10) == f"{B} 4"
    assert leader_by(known(A, B), new, after=11) == ""


def fork(voter: PeerId) -> e.Restore:
    return e.Restore(1, (Version(0, 0, ""),), 0, 0, (voter,), 7, True, 0)


def test_one_of_two_voters_may_go_on_alone() -> None:
    alone = [change(11, 4, fork(B), by=B), election(12, 4, B, B)]
    assert leader_by(known(A, B), *alone) == f"{B} 4"
    assert leader_by(known(A, B, C), *alone) == "", "one of three may not"
    false = [change(11, 4, fork(B), by=C), election(12, 4, B, B)]
    assert leader_by(known(A, B), *false) == ""


def test_a_fork_that_no_peer_has_signed_does_not_count() -> None:
    """Not even that of a recovery by force: the log begins behind it."""
    alone = [e.LogEntry(11, 4, fork(B)), election(12, 4, B, B)]
    assert leader_by(known(A, B), *alone) == ""


# Keeping it short -------------------------------------------------------------------------------


def test_only_elections_that_a_change_depends_on_are_kept() -> None:
    made, story = (
        e.Mandate(),
        [
            (election(3, 1, A, A), False),
            (election(4, 2, B, A), False),
            (change(5, 2, gains(D), by=B), True),
            (e.LogEntry(6, 2, e.Lost(E, "")), False),
            (election(7, 3, A, A), False),
            (election(8, 4, D, A), False),
        ],
    )
    for entry, changes in story:
        made = extended(made, entry, changes=changes)
    assert [entry.index for entry in made.entries] == [4, 5, 8]
    assert made.after == 0


def test_an_old_change_is_dropped_and_the_last_election_stays() -> None:
    made = extended(e.Mandate(), election(3, 1, A, A), changes=False)
    for index in range(4, 4 + MANDATE_MAX + 5):
        made = extended(made, change(index, 1, gains(D), by=A), changes=True)
    assert len(made.entries) == MANDATE_MAX
    assert isinstance(made.entries[0].body, e.Elected)
    assert made.after == made.entries[1].index - 1
    made = extended(made, election(900, 2, B, A), changes=False)
    assert [type(entry.body) for entry in made.entries].count(e.Elected) == 1
