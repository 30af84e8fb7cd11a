"""Who leads, what is committed, and what never happens: one log for all, however things fail."""

import pytest

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.node import Raft
from protocols.raft.roles import Role
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId, Version
from tests.protocols.circle import RULES, Circle, note, stands, votes, voting
from tests.protocols.scenes import A, B, C, D
from tests.protocols.storm import Storm

E = PeerId("e.00000004")
TIMEOUT_S = RULES.election_timeout_s


def elections(raft: Raft) -> int:
    """How often it came to lead."""
    return sum(count for (_, role), count in raft.role_changes.items() if role is Role.LEADER)


# Elections ------------------------------------------------------------------------------------


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


def test_when_the_leader_is_gone_another_is_elected_and_begins_its_term_with_an_entry() -> None:
    circle = voting(A, B, C)
    circle.crash(A)
    circle.pass_time(3 * TIMEOUT_S)
    leader = circle.leader()
    raft = circle.rafts[leader]
    assert (leader in (B, C), raft.term > 1, elections(raft)) == (True, True, 1)
    assert circle.committed(B) == circle.committed(C)
    assert circle.committed(leader)[-1] == e.Elected(leader)


def test_two_of_two_are_needed_and_one_of_two_waits() -> None:
    circle = voting(A, B)
    circle.crash(A)
    circle.pass_time(20 * TIMEOUT_S)
    assert circle.leaders() == []
    assert circle.rafts[B].term == 1, "asking in vain costs no term"
    circle.restart(A)
    circle.pass_time(4 * TIMEOUT_S)
    assert circle.committed(circle.leader())[-1] == e.Elected(circle.leader())


def test_who_cannot_win_does_not_disturb_the_others_when_it_is_back() -> None:
    """Pre-vote: else its term, raised while it was away, would end the leader's."""
    circle = voting(A, B, C)
    circle.alone(C)
    circle.append(A, note("without C"))
    circle.pass_time(10 * TIMEOUT_S)
    assert circle.rafts[C].term == 1
    circle.back(C)
    circle.pass_time(2 * TIMEOUT_S)
    assert (circle.leader(), circle.rafts[A].term, elections(circle.rafts[A])) == (A, 1, 1)
    assert circle.committed(C) == circle.committed(A)


def test_a_leader_that_no_majority_answers_steps_down() -> None:
    """Check-quorum: with a one-way cut its followers would hear it and wait for ever."""
    circle = voting(A, B, C)
    circle.deaf.add(A)
    circle.pass_time(2 * TIMEOUT_S)
    assert not circle.rafts[A].leads
    circle.pass_time(4 * TIMEOUT_S)
    assert circle.rafts[circle.leader()].settled


def test_who_hears_its_leader_votes_for_nobody_else() -> None:
    circle = voting(A, B, C)
    follower = circle.rafts[B]
    vote = m.Vote(9, 99, 9, pre=False, urgent=False)
    follower.receive(C, vote, circle.now)
    assert (follower.term, follower.leader, follower.take()) == (1, A, [])
    leader = circle.rafts[A]
    leader.receive(C, vote, circle.now)
    assert (leader.term, leader.leads, leader.take()) == (1, True, [])
    circle.part((A, B))
    follower.receive(C, vote, circle.now)
    assert (follower.term, follower.vote) == (9, C), "its leader's connection has ended"


def test_a_shorter_or_older_log_does_not_win() -> None:
    circle = voting(A, B, C)
    circle.alone(C)
    circle.append(A, note("C lacks this"))
    circle.settle()
    circle.crash(A)
    circle.back(C)
    stands(circle, C)
    circle.settle()
    assert circle.leaders() == []
    assert circle.rafts[B].term == 1
    stands(circle, B)
    circle.settle()
    assert circle.leader() == B
    assert note("C lacks this") in circle.committed(C)


def test_one_vote_per_term_even_by_two_lives() -> None:
    circle = voting(A, B, C)
    circle.crash(A)
    voter = circle.rafts[C]
    index, term = voter.log.last_index, voter.log.last_term
    question = m.Vote(5, index, term, pre=False, urgent=True)
    voter.receive(B, question, circle.now)
    circle.collect(C)
    assert circle.sent(m.Voted) == [], "not before the vote is on the disk"
    circle.write(C)
    assert circle.wire[-1] == (C, B, m.Voted(5, granted=True, pre=False))
    circle.crash(C)
    circle.restart(C)
    voter = circle.rafts[C]
    assert (voter.term, voter.vote) == (5, B)
    for peer, granted in ((D, False), (B, True)):
        voter.receive(peer, question, circle.now)
        circle.collect(C)
        assert circle.wire[-1] == (C, peer, m.Voted(5, granted, pre=False))


def test_a_vote_that_the_crash_was_quicker_than_was_given_to_nobody() -> None:
    circle = voting(A, B, C)
    circle.crash(A)
    raft = circle.rafts[C]
    question = m.Vote(5, raft.log.last_index, 1, pre=False, urgent=True)
    raft.receive(B, question, circle.now)
    circle.collect(C)
    circle.crash(C)
    circle.restart(C)
    assert (circle.rafts[C].term, circle.rafts[C].vote) == (1, "")


def test_peers_draw_different_times_to_stand() -> None:
    circle = voting(A, B, C)
    circle.alone(A)
    times = {circle.rafts[peer].deadline for peer in (B, C)}
    assert len(times) == 2
    for raft in (circle.rafts[B], circle.rafts[C]):
        grace = RULES.reconnect_grace_s
        assert grace <= raft.deadline - circle.now <= 2 * grace, "its end was seen, not guessed"


# Handing over ---------------------------------------------------------------------------------


def test_who_wants_to_go_hands_over_to_who_has_everything_and_loses_no_time() -> None:
    circle = voting(A, B, C)
    circle.stuck.add(B)
    circle.append(A, note("B has it in memory only"))
    circle.settle()
    assert circle.rafts[A].hand_over(but=())
    assert not circle.rafts[A].settled, "it decides nothing any more"
    circle.collect(A)
    assert circle.sent(m.HandOver) == [(A, C)]
    circle.stuck.clear()
    circle.settle()
    assert (circle.leader(), circle.rafts[C].term) == (C, 2)


def test_without_anybody_to_hand_over_to_there_is_no_handing_over() -> None:
    circle = voting(A, B)
    circle.part((A, B))
    assert not circle.rafts[A].hand_over(but=())
    assert circle.rafts[A].settled


def test_nothing_is_handed_over_to_who_goes_as_well() -> None:
    circle = voting(A, B, C)
    assert circle.rafts[A].hand_over(but=(B,))
    circle.collect(A)
    assert circle.sent(m.HandOver) == [(A, C)]
    assert not voting(A, B).rafts[A].hand_over(but=(B,))


def test_an_heir_that_does_not_stand_costs_one_timeout() -> None:
    circle = voting(A, B, C)
    circle.rafts[A].hand_over(but=())
    circle.collect(A)
    circle.wire.clear()
    circle.pass_time(TIMEOUT_S + 0.5)
    assert (circle.leader(), circle.rafts[A].settled) == (A, True)


def test_only_the_leader_may_hand_over() -> None:
    circle = voting(A, B, C)
    circle.rafts[B].receive(C, m.HandOver(1), circle.now)
    assert (circle.rafts[B].role, circle.rafts[B].term) == (Role.FOLLOWER, 1)


# Committing -----------------------------------------------------------------------------------


def test_an_entry_holds_when_a_majority_has_it_on_its_disks() -> None:
    circle = voting(A, B, C)
    circle.stuck.update((B, C))
    circle.append(A, note("x"))
    circle.settle()
    index = circle.rafts[A].log.last_index
    assert circle.rafts[C].log.last_index == index
    assert circle.rafts[A].commit_index == index - 1
    circle.stuck.discard(C)
    circle.settle()
    assert circle.rafts[A].commit_index == index


def test_a_leaders_own_disk_counts_as_one_and_is_not_waited_for() -> None:
    circle = voting(A, B, C)
    circle.stuck.add(A)
    circle.append(A, note("x"))
    circle.settle()
    assert note("x") in circle.committed(A)


def test_an_older_terms_entry_is_not_committed_by_counting() -> None:
    """Figure 8 of the Raft paper: a majority has it, and a newer leader may still replace it."""
    circle = voting(A, B, C, D, E)
    for other in (C, D, E):
        circle.part((A, other))
    circle.append(A, note("old"))
    circle.settle()  # A and B have it.
    index = circle.rafts[A].log.last_index
    circle.crash(A)
    stands(circle, B)
    raft = circle.rafts[B]
    while not raft.leads:
        assert circle.step()
    while circle.writes[B]:
        circle.write(B)
    for peer in (C, D, E):
        raft.receive(peer, m.Appended(raft.term, matches=True, index=index), circle.now)
    assert raft.commit_index == index - 1
    for peer in (C, D):
        raft.receive(peer, m.Appended(raft.term, matches=True, index=index + 1), circle.now)
    assert raft.commit_index == index + 1, "with an entry of its own, all before it hold as well"


def test_a_leader_of_an_earlier_term_is_told_of_the_present_one() -> None:
    circle = voting(A, B, C)
    circle.rafts[B].receive(C, m.Vote(4, 99, 1, pre=False, urgent=True), circle.now)
    circle.collect(B)
    circle.write(B)
    circle.wire.clear()
    circle.beat(A)
    circle.settle()
    assert (circle.rafts[A].leads, circle.rafts[A].term) == (False, 4)


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


def test_who_was_struck_stands_for_nothing_and_reads_on() -> None:
    circle = voting(A, B, C)
    circle.append(A, votes(C, yes=False))
    circle.settle()
    circle.append(A, note("x"))
    circle.pass_time(0.5)
    assert note("x") in circle.committed(C)
    circle.alone(C)
    circle.pass_time(5 * TIMEOUT_S)
    assert (circle.rafts[C].term, circle.rafts[C].role) == (1, Role.FOLLOWER)


def test_a_leader_that_struck_itself_goes_when_that_holds() -> None:
    circle = voting(A, B, C)
    circle.append(A, votes(A, yes=False))
    circle.write(A)
    assert circle.rafts[A].leads, "nobody else could make it hold"
    circle.settle()
    assert not circle.rafts[A].leads
    circle.pass_time(4 * TIMEOUT_S)
    assert circle.leader() in (B, C)


def test_the_only_voter_leads_again_after_a_restart_without_asking_anybody() -> None:
    circle = Circle(A, B)
    circle.begin()
    circle.crash(A)
    circle.restart(A)
    assert circle.leaders() == []
    circle.pass_time(3 * TIMEOUT_S)
    assert (circle.leader(), circle.rafts[A].term, circle.rafts[A].settled) == (A, 2, True)


def test_who_is_not_to_vote_any_more_may_still_be_needed() -> None:
    """A leader struck itself, and died before anybody else read that: only its log can win."""
    circle = voting(A, B)
    circle.append(A, votes(A, yes=False))
    circle.write(A)
    circle.crash(A)
    circle.restart(A)
    circle.pass_time(20 * TIMEOUT_S)
    # Fails while only who is in the newest list of voters stands. Ongaro's thesis 4.2.2: until
    # the change holds, who is struck by it stands too, and does not count its own vote.
    assert circle.leaders() != []


def test_a_voter_whose_disk_was_full_when_it_should_have_stood_stands_later() -> None:
    """Else nobody would ever lead again: B lacks what A has, and A would ask nobody."""
    circle = voting(A, B)
    circle.alone(A)
    circle.append(A, note("only A has this"))
    circle.write(A)
    circle.append(A, note("and this is too much for its disk"))
    circle.fail(A)
    circle.stuck.add(A)
    circle.pass_time(3 * TIMEOUT_S)
    circle.stuck.clear()
    circle.back(A)
    circle.pass_time(20 * TIMEOUT_S)
    assert circle.leaders() == [A]


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
