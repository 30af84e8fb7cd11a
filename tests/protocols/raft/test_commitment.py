"""Up to which index the log is committed."""

from protocols.messages import peer as m
from protocols.types.ids import PeerId
from tests.protocols.circle import RULES, note, stands, voting
from tests.protocols.scenes import A, B, C, D

E = PeerId("e.00000004")
TIMEOUT_S = RULES.election_timeout_s


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
