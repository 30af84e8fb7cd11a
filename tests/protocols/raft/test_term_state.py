"""Which changes of role there are, and that all of them happen."""

from collections import Counter

from protocols.raft.term_state import MOVES, Role
from protocols.types.ids import PeerId
from tests.protocols.circle import Circle, stands
from tests.protocols.scenes import A, B, C, D
from tests.protocols.storm import Storm

E = PeerId("e.00000004")
AGAIN = (Role.CANDIDATE, Role.CANDIDATE)


def test_nobody_leads_without_votes_and_nobody_votes_for_itself_while_it_leads() -> None:
    to_leader = {before for before, after in MOVES if after is Role.LEADER}
    assert to_leader == {Role.CANDIDATE, Role.FOLLOWER}, "a follower only as the founder"
    assert {after for before, after in MOVES if before is Role.LEADER} == {Role.FOLLOWER}


def test_in_a_storm_every_legal_change_happens_and_no_other() -> None:
    seen: Counter[tuple[Role, Role]] = Counter()
    for seed in range(136, 152):
        storm = Storm(seed, *(A, B, C, D, E)[: 2 + seed % 4])
        lives = list(storm.circle.rafts.values())
        for _ in range(20):
            storm.blow(50)
            lives += [raft for raft in storm.circle.rafts.values() if raft not in lives]
        for raft in lives:
            seen += raft.election.state.role_changes
    assert set(seen) | {AGAIN} == MOVES


def test_who_votes_alone_stands_again_when_it_was_stopped_before_its_disk_answered() -> None:
    circle = Circle(A, B)
    circle.begin()
    circle.crash(A)
    circle.restart(A)
    stands(circle, A)
    circle.now = circle.rafts[A].election.deadline
    circle.look(A)
    assert circle.rafts[A].election.state.role_changes[AGAIN] == 1
    circle.settle()
    assert circle.leader() == A
