"""Which peer leads: votes, candidacy, and handing over."""

import pytest

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.node import Raft
from protocols.raft.term_state import Role
from protocols.types.ids import PeerId
from protocols.types.limits import TERM_LEAP_MAX
from tests.protocols.circle import RULES, Circle, note, stands, votes, voting
from tests.protocols.scenes import A, B, C, D

E = PeerId("e.00000004")
TIMEOUT_S = RULES.election_timeout_s


def elections(raft: Raft) -> int:
    """How often it came to lead."""
    changes = raft.election.state.role_changes
    return sum(count for (_, role), count in changes.items() if role is Role.LEADER)


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
    assert (follower.term, follower.leader, follower.take_commands(0.0)) == (1, A, [])
    leader = circle.rafts[A]
    leader.receive(C, vote, circle.now)
    assert (leader.term, leader.leads, leader.take_commands(0.0)) == (1, True, [])
    circle.part((A, B))
    follower.receive(C, vote, circle.now)
    state = follower.election.state
    assert (state.term, state.vote) == (9, C), "its leader's connection has ended"


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
    assert (voter.term, voter.election.state.vote) == (5, B)
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
    assert (circle.rafts[C].term, circle.rafts[C].election.state.vote) == (1, "")


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
    assert circle.rafts[A].election.hand_over(but=())
    assert not circle.rafts[A].settled, "it decides nothing any more"
    circle.collect(A)
    assert circle.sent(m.HandOver) == [(A, C)]
    circle.stuck.clear()
    circle.settle()
    assert (circle.leader(), circle.rafts[C].term) == (C, 2)


def test_without_anybody_to_hand_over_to_there_is_no_handing_over() -> None:
    circle = voting(A, B)
    circle.part((A, B))
    assert not circle.rafts[A].election.hand_over(but=())
    assert circle.rafts[A].settled


def test_nothing_is_handed_over_to_who_goes_as_well() -> None:
    circle = voting(A, B, C)
    assert circle.rafts[A].election.hand_over(but=(B,))
    circle.collect(A)
    assert circle.sent(m.HandOver) == [(A, C)]
    assert not voting(A, B).rafts[A].election.hand_over(but=(B,))


def test_an_heir_that_does_not_stand_costs_one_timeout() -> None:
    circle = voting(A, B, C)
    circle.rafts[A].election.hand_over(but=())
    circle.collect(A)
    circle.wire.clear()
    circle.pass_time(TIMEOUT_S + 0.5)
    assert (circle.leader(), circle.rafts[A].settled) == (A, True)


def test_only_the_leader_may_hand_over() -> None:
    circle = voting(A, B, C)
    circle.rafts[B].receive(C, m.HandOver(1), circle.now)
    assert (circle.rafts[B].election.state.role, circle.rafts[B].term) == (Role.FOLLOWER, 1)


# A lost vote -----------------------------------------------------------------------------------


def test_who_was_struck_stands_for_nothing_and_reads_on() -> None:
    circle = voting(A, B, C)
    circle.append(A, votes(C, yes=False))
    circle.settle()
    circle.append(A, note("x"))
    circle.pass_time(0.5)
    assert note("x") in circle.committed(C)
    circle.alone(C)
    circle.pass_time(5 * TIMEOUT_S)
    assert (circle.rafts[C].term, circle.rafts[C].election.state.role) == (1, Role.FOLLOWER)


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
    # Fails while only voters of the newest list stand. Ongaro's thesis 4.2.2: until the change
    # holds, a voter that it strikes stands too, and does not count its own vote.
    assert circle.leaders() != []


def test_a_voter_whose_disk_was_full_when_it_should_have_stood_stands_later() -> None:
    """Else no peer would lead again: B lacks what A has, and A would ask no peer."""
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


def test_a_far_term_raises_the_term_by_one_leap_at_most() -> None:
    """A false Append once made the next candidate name a term that no message can hold."""
    raft = voting(A, B, C).rafts[B]
    far = m.Append(1, (1 << 63) - 1, 0, 0, (), 0, 0)
    raft.receive(C, far, 1.0)
    assert (raft.term, raft.leader) == (1 + TERM_LEAP_MAX, None)
    raft.receive(C, m.Vote(far.term, raft.log.last_index, 1, pre=False, urgent=True), 1.0)
    assert raft.term == 1 + TERM_LEAP_MAX, "only a leader's message raises it"


def test_after_a_long_absence_repeated_messages_of_the_leader_lead_to_its_term() -> None:
    raft = voting(A, B, C).rafts[B]
    present = m.Append(1, 5 * TERM_LEAP_MAX // 2, 0, 0, (), 0, 0)
    for _ in range(3):
        raft.receive(A, present, 1.0)
    assert (raft.term, raft.leader) == (present.term, A)


def test_the_election_timeout_follows_the_pauses_of_the_leader() -> None:
    circle = voting(A, B, C)
    election = circle.rafts[B].election
    assert election.timeout_s == RULES.election_timeout_s, "its pauses are not known yet"
    election.expect(0.25)
    circle.settle()
    assert election.timeout_s == pytest.approx(0.75)
    election.heard(A, circle.now)
    assert circle.now + 0.75 <= election.deadline <= circle.now + 1.5
    election.heard(C, circle.now)
    assert election.timeout_s == RULES.election_timeout_s, "another leader"


def test_a_candidate_waits_twice_as_long_each_time() -> None:
    """Answers may take longer than the timeout: with equal waits no vote would ever count."""
    circle = voting(A, B, C)
    election = circle.rafts[B].election
    circle.part((A, B), (A, C), (B, C))
    election.expect(0.0)
    least_s, waits_s = election.timeout_s, list[float]()
    for _ in range(3):
        election._stand(circle.now, urgent=False)  # pyright: ignore[reportPrivateUsage]
        waits_s.append(election.deadline - circle.now)
    assert least_s <= waits_s[0] <= 2 * least_s <= waits_s[1] <= 4 * least_s
    assert waits_s[2] <= 2 * RULES.election_timeout_s
