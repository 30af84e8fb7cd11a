"""One log for all, however things fail: what never happens."""

import pytest

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId, Version
from tests.protocols.circle import RULES, Circle, note, votes, voting
from tests.protocols.scenes import A, B, C, D
from tests.protocols.storm import Storm

E = PeerId("e.00000004")
TIMEOUT_S = RULES.election_timeout_s


# Founding ---------------------------------------------------------------------------------------


def test_the_founder_leads_at_once_but_nothing_holds_before_it_is_on_its_disk() -> None:
    circle = Circle(A, B)
    circle.stuck.add(A)
    circle.begin()
    raft = circle.rafts[A]
    assert (raft.leads, raft.term, raft.commit_index, raft.settled) == (True, 1, 0, False)
    circle.stuck.clear()
    circle.settle()
    assert [type(body) for body in circle.committed(A)] == [e.Run, e.Member, e.Elected]
    assert raft.settled


def test_nobody_hears_of_a_run_that_its_founder_could_forget() -> None:
    """Seed 1500280: it founded the run anew, in the same term, and B kept what it had heard."""
    circle = Circle(A, B)
    circle.stuck.add(A)
    circle.begin()
    circle.beat(A)
    circle.settle()
    assert (circle.wire, circle.rafts[B].log.last_index) == ([], 0)
    circle.stuck.clear()
    circle.settle()
    assert circle.committed(B) == circle.committed(A) != []


def test_nobody_hears_of_a_branch_that_a_crash_could_take_back() -> None:
    circle = voting(A, B)
    circle.restart(A)
    raft = circle.rafts[A]
    fork = e.Restore(1, (Version(0, 0, ""),), 0, 0, (A,), 7, True, 0)
    raft.seize(circle.now, fork, after=raft.log.last_index)
    circle.collect(A)
    circle.beat(A)
    assert (raft.leads, circle.wire) == (True, [])
    circle.write(A)
    assert circle.sent(m.Append) != []


# Committing -----------------------------------------------------------------------------------


def test_a_leader_begins_a_newer_term_for_a_voter_that_a_candidate_took_along() -> None:
    circle = voting(A, B, C)
    circle.rafts[B].receive(C, m.Vote(4, 99, 1, pre=False, urgent=True), circle.now)
    circle.collect(B)
    circle.write(B)
    circle.wire.clear()
    circle.beat(A)
    circle.settle()
    assert (circle.rafts[A].leads, circle.rafts[A].term) == (True, 5)
    assert {raft.term for raft in circle.rafts.values()} == {5}


def test_a_voter_that_claims_newer_terms_again_and_again_ends_few_terms() -> None:
    circle = voting(A, B, C)
    terms: list[int] = []
    for _ in range(100):
        raft = circle.rafts[A]
        raft.receive(C, m.Appended(raft.term + 1, False, 0), circle.now)
        circle.collect(A)
        circle.settle()
        circle.pass_time(0.3)
        assert circle.rafts[A].leads
        terms.append(circle.rafts[A].term)
    assert 2 <= len(set(terms)) <= 6  # In 30 s: after 0, 1, 3, 7 and 15 s.


def test_two_leaders_of_one_term_are_a_lie() -> None:
    circle = voting(A, B, C)
    with pytest.raises(RemoteProtocolError, match="leads in a term in which we lead"):
        circle.rafts[A].receive(B, m.Append(1, 1, 0, 0, (), 0), circle.now)


# Voters ---------------------------------------------------------------------------------------


def test_a_new_voter_counts_from_its_entry_on_and_the_change_is_under_way_until_it_holds() -> None:
    circle = Circle(A, B)
    circle.begin()
    raft = circle.rafts[A]
    circle.append(A, votes(B))
    circle.write(A)
    assert (raft.log.voters, raft.reconfiguring) == ((A, B), True)
    assert raft.commit_index == raft.log.last_index - 1, "A alone is no majority of the two"
    circle.settle()
    assert (raft.reconfiguring, raft.commit_index) == (False, raft.log.last_index)


def test_of_two_voters_the_leader_may_strike_the_other_alone() -> None:
    """A majority of the one that is left; the other could not have done the same to it."""
    circle = voting(A, B)
    circle.crash(B)
    circle.append(A, votes(B, yes=False))
    assert circle.rafts[A].reconfiguring
    circle.settle()
    assert (circle.rafts[A].log.voters, circle.rafts[A].reconfiguring) == ((A,), False)
    circle.pass_time(3 * TIMEOUT_S)
    assert circle.rafts[A].settled


def test_a_leader_that_struck_itself_goes_when_that_holds() -> None:
    circle = voting(A, B, C)
    circle.append(A, votes(A, yes=False))
    circle.write(A)
    assert circle.rafts[A].leads, "nobody else could make it hold"
    circle.settle()
    assert not circle.rafts[A].leads
    circle.pass_time(4 * TIMEOUT_S)
    assert circle.leader() in (B, C)


# Everything at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_there_is_one_log(seed: int) -> None:
    """One leader per term, equal logs up to any match, and what is committed stays."""
    storm = Storm(seed, *(A, B, C, D, E)[: 3 + seed % 3])
    for _ in range(4):
        storm.blow(400)
        storm.calm()
        held = len(storm.held)
        leader = storm.circle.leader()
        storm.circle.append(leader, note("after the storm"))
        storm.circle.pass_time(1.0)
        storm.check()
        assert len(storm.held) > held
        assert {raft.commit_index for raft in storm.circle.rafts.values()} == {len(storm.held)}
