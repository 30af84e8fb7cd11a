"""Up to which index the log is committed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.raft import Acknowledgement
from protocols.raft.mandate import HeldStatement, LeaderProofs, NoProofs
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId
from tests.protocols.circle import RULES, Circle, Sealed, note, stands, voting
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


def in_the_clear(_: PeerId) -> LeaderProofs:
    return NoProofs()


@pytest.mark.parametrize("prove", [in_the_clear, Sealed])
@pytest.mark.parametrize(
    ("voters", "stuck"),
    [
        ((A, B), (A,)),
        ((A, B), (B,)),
        ((A, B, C), (B, C)),
        ((A, B, C), (A, C)),
        ((A, B, C, D, E), (C, D, E)),
    ],
)
def test_what_only_half_of_the_disks_have_is_committed_by_no_peer(
    voters: tuple[PeerId, ...], stuck: tuple[PeerId, ...], prove: Callable[[PeerId], LeaderProofs]
) -> None:
    circle = voting(*voters, prove=prove)
    index = stuck_entry(circle, *stuck)
    circle.pass_time(RULES.heartbeat_interval_s)
    for peer, raft in circle.rafts.items():
        assert (peer, raft.log.last_index, raft.commit_index) == (peer, index, index - 1)
    circle.stuck.clear()
    circle.settle()
    assert all(raft.commit_index == index for raft in circle.rafts.values())


# Signed acknowledgements --------------------------------------------------------------------


def sealed_voting(*peers: PeerId) -> Circle:
    return voting(*peers, prove=Sealed)


def acknowledged(
    circle: Circle, peer: PeerId, index: int, *, by: PeerId | None = None
) -> Acknowledgement:
    """The acknowledgement of A's log up to `index`. `by`: the key that signs it, if another."""
    raft = circle.rafts[A]
    log_hash = raft.log.hash_at(index)
    said = HeldStatement(raft.term, index, log_hash)
    return Acknowledgement(peer, index, log_hash, Sealed(by or peer).sign(said))


def heartbeat(circle: Circle, *held: Acknowledgement, claims: int = 0) -> m.Append:
    """From A; the reader has its log. `claims`: the leader says that so much is committed."""
    log, term = circle.rafts[A].log, circle.rafts[A].term
    return m.Append(1, term, log.last_index, log.last_term, (), claims, claims, held)


def stuck_entry(circle: Circle, *stuck: PeerId) -> int:
    """An entry that all peers have, and that these peers' disks do not write; its index."""
    circle.stuck.update(stuck)
    circle.append(A, note("x"))
    circle.settle()
    return circle.rafts[A].log.last_index


@pytest.mark.parametrize("others", [(B,), (B, C), (B, C, D, E)])
def test_with_signed_acknowledgements_all_peers_commit(others: tuple[PeerId, ...]) -> None:
    circle = sealed_voting(A, *others)
    circle.append(A, note("x"), note("y"))
    circle.settle()
    for peer, raft in circle.rafts.items():
        assert note("y") in circle.committed(peer), "without a heartbeat"
        assert raft.commit_index == raft.log.last_index


def test_a_leaders_word_alone_commits_nothing() -> None:
    circle = sealed_voting(A, B, C)
    index = stuck_entry(circle, A, B, C)
    circle.rafts[B].receive(A, heartbeat(circle, claims=index), circle.now)
    assert circle.rafts[B].commit_index == index - 1
    circle.rafts[B].receive(A, heartbeat(circle, acknowledged(circle, A, index)), circle.now)
    assert circle.rafts[B].commit_index == index - 1, "one of three"
    both = acknowledged(circle, A, index), acknowledged(circle, C, index)
    circle.rafts[B].receive(A, heartbeat(circle, *both), circle.now)
    assert circle.rafts[B].commit_index == index


def test_half_of_the_voters_commit_nothing() -> None:
    circle = sealed_voting(A, B, C, D)
    index = stuck_entry(circle, A, B, C, D)
    held = [acknowledged(circle, peer, index) for peer in (A, C, D)]
    circle.rafts[B].receive(A, heartbeat(circle, *held[:2]), circle.now)
    assert circle.rafts[B].commit_index == index - 1
    circle.rafts[B].receive(A, heartbeat(circle, *held), circle.now)
    assert circle.rafts[B].commit_index == index


def test_its_own_disk_counts_as_soon_as_it_answers() -> None:
    circle = sealed_voting(A, B, C)
    index = stuck_entry(circle, B, C)
    assert circle.rafts[B].commit_index == index - 1
    circle.write(B)
    assert circle.rafts[B].commit_index == index, "A's acknowledgement was here"
    assert circle.rafts[A].commit_index == index - 1, "B's is under way"


def test_a_false_acknowledgement_ends_the_trust_in_the_leader_that_shows_it() -> None:
    circle = sealed_voting(A, B, C)
    index = stuck_entry(circle, A, B, C)
    false = acknowledged(circle, C, index, by=A)
    with pytest.raises(RemoteProtocolError, match="false acknowledgement of c"):
        circle.rafts[B].receive(A, heartbeat(circle, false), circle.now)
    assert circle.rafts[B].commit_index == index - 1
    assert circle.rafts[B].leader is None


def test_a_voter_that_signs_falsely_is_named_by_the_leader() -> None:
    circle = sealed_voting(A, B, C)
    index = stuck_entry(circle, A, B, C)
    leader = circle.rafts[A]
    for held, why in (
        (acknowledged(circle, B, index, by=C), "false acknowledgement of b"),
        (acknowledged(circle, C, index), "in the name of c"),
    ):
        answer = m.Appended(leader.term, matches=True, index=index, held=held)
        with pytest.raises(RemoteProtocolError, match=why):
            leader.receive(B, answer, circle.now)
    assert leader.commit_index == index - 1
    unsigned = m.Appended(leader.term, matches=True, index=index)
    leader.receive(B, unsigned, circle.now)
    assert leader.commit_index == index - 1, "and one without a signature does not count"


def test_an_acknowledgement_waits_for_the_log_that_it_is_about() -> None:
    circle = sealed_voting(A, B, C)
    circle.deaf.add(C)
    circle.append(A, note("x"))
    circle.settle()
    index = circle.rafts[A].commit_index
    reader = circle.rafts[C]
    early = replace(
        heartbeat(circle), previous_index=index - 1, held=circle.rafts[A].commitment.shown()
    )
    reader.receive(A, early, circle.now)
    assert reader.commit_index == index - 1
    entry = circle.rafts[A].log.entries[-1]
    reader.receive(A, replace(early, entries=(entry,), held=()), circle.now)
    assert reader.commit_index == index


def test_a_peer_that_got_a_log_of_its_own_reads_that_of_the_majority() -> None:
    """A leader sent it an entry that it sent to no other peer, in the same term."""
    circle = sealed_voting(A, B, C)
    log, term = circle.rafts[A].log, circle.rafts[A].term
    false = e.LogEntry(log.last_index + 1, term, note("for C alone"))
    circle.rafts[C].receive(A, replace(heartbeat(circle), entries=(false,)), circle.now)
    circle.collect(C)
    circle.append(A, note("x"), note("y"))
    circle.settle()
    circle.pass_time(4 * RULES.heartbeat_interval_s)
    for peer in (A, B, C):
        assert circle.committed(peer)[-2:] == [note("x"), note("y")]
    assert circle.rafts[C].leader == A


def test_what_it_had_acknowledged_is_not_forgotten_meanwhile() -> None:
    circle = sealed_voting(A, B, C)
    index = stuck_entry(circle, A, B)  # C has written it, and does not know that it is committed.
    log, term = circle.rafts[A].log, circle.rafts[A].term
    false = e.LogEntry(index + 1, term, note("for C alone"))
    circle.rafts[C].receive(A, replace(heartbeat(circle), entries=(false,)), circle.now)
    circle.append(A, note("y"))
    held = [acknowledged(circle, peer, index + 1) for peer in (A, B)]
    reader, before = circle.rafts[C], circle.rafts[C].log.entries[index - 1]
    reader.receive(A, replace(heartbeat(circle, *held), previous_index=index), circle.now)
    assert reader.log.entries[index - 1] is before
    reader.receive(
        A,
        replace(heartbeat(circle), previous_index=index - 1, entries=tuple(log.since(index))),
        circle.now,
    )
    assert reader.log.entries[index - 1] is before
    assert reader.log.entries[index].body == note("y")


def test_acknowledgements_of_an_earlier_term_prove_nothing() -> None:
    circle = sealed_voting(A, B, C)
    index = stuck_entry(circle, A, B, C)
    held = acknowledged(circle, A, index)
    circle.stuck.clear()
    circle.crash(A)
    stands(circle, C)
    circle.settle()
    log, term = circle.rafts[C].log, circle.rafts[C].term
    last = log.last_index
    old = replace(held, index=last + 1, log_hash=bytes(32))
    entry = e.LogEntry(last + 1, term, note("z"))
    said = m.Append(1, term, last, log.last_term, (entry,), 0, 0, (old,))
    with pytest.raises(RemoteProtocolError, match="false acknowledgement of a"):
        circle.rafts[B].receive(C, said, circle.now)
