"""Which peers follow from complaints about wrong results."""

from dataclasses import replace
from itertools import combinations

from protocols.rounds.suspicions import Complaint, Suspicions, least_trusted, proved
from protocols.types.ids import PeerId, Stamp
from tests.protocols.fragment import training
from tests.protocols.scenes import A, B, C, D

ONE, TWO = Stamp(1, 1, 1, 0, 1, 0), Stamp(1, 1, 1, 0, 1, 1)


def about(reporter: PeerId, *peers: PeerId, stamp: Stamp = ONE) -> Complaint:
    return Complaint(reporter, stamp, 0, frozenset(peers))


def test_one_peer_proves_nothing_however_often_it_complains() -> None:
    said = Suspicions()
    assert said.add(about(A, B)) == []
    assert said.add(about(A, B, stamp=TWO)) == []
    assert said.add(about(A, B, C)) == []
    assert said.distrusted == set()


def test_two_peers_prove_what_their_complaints_have_in_common() -> None:
    said = Suspicions()
    said.add(about(A, B))
    assert said.add(about(C, B)) == [B]
    assert said.distrusted == {B}
    assert said.add(about(C, B, stamp=TWO)) == [], "it is judged anew when it comes back"
    assert said.add(about(A, B, stamp=TWO)) == [B]


def test_complaints_about_two_liars_of_two_rounds_do_not_accuse_an_honest_peer() -> None:
    """Seed 64789301: D lied in round 1, and E in round 2. B, which told the truth, was named beside
    each of them."""
    said, other = Suspicions(), PeerId("e.00000005")
    later = Stamp(1, 1, 2, 0, 2, 0)
    assert said.add(about(A, B, D)) == []
    assert said.add(about(C, B, other, stamp=later)) == []
    assert said.add(about(A, D)) == [], "and C has not named D"
    assert said.add(about(C, D, stamp=later)) == [D]
    assert said.distrusted == {D}


def test_a_rollback_forgets_complaints_about_rounds() -> None:
    said = Suspicions()
    said.add(about(A, B, D))
    said.add(about(C, B, A, stamp=replace(ONE, lineage=2)))
    assert said.several == {0: {(C, frozenset((A, B)))}}


def test_a_late_complaint_about_a_liar_proves_nothing_with_the_next_one() -> None:
    """Seed 1795910000459: B lied, then D did. A's complaint about C or B came after the proof, and
    proved with another one, about C or D, that the honest C was at fault."""
    said, other = Suspicions(), PeerId("e.00000005")
    said.add(about(A, B))
    assert said.add(about(other, B)) == [B]
    assert said.add(about(A, B, C)) == []
    assert said.add(about(other, C, D, stamp=TWO)) == []
    assert said.distrusted == {B}


def test_a_pair_is_not_proved_but_one_of_it_by_another_pair() -> None:
    said = Suspicions()
    said.add(about(A, B, C))
    assert said.add(about(D, B, C)) == []
    other = PeerId("e.00000005")
    assert said.add(about(D, other, C, stamp=TWO)) == [C]


def test_a_suspect_does_not_count_as_a_witness() -> None:
    """C gave other bytes to the owner B than to A, and says that B is at fault."""
    assert proved([(A, frozenset((B, C))), (C, frozenset((B,)))]) == frozenset()


def test_a_single_liar_never_has_an_honest_peer_removed() -> None:
    """Honest peers name the liar, with others or alone; the liar names whichever it likes."""
    peers, liar = (A, B, C, D), D
    honest = [x for x in peers if x != liar]
    sets = [frozenset(x) for n in (1, 2) for x in combinations(peers, n)]
    for reporter in honest:
        true = [x for x in sets if liar in x and reporter not in x]
        false = [x for x in sets if liar not in x]
        for one in true:
            for other in false:
                assert proved([(reporter, one), (liar, other)]) == frozenset()
            for second in honest:
                for other in [x for x in sets if liar in x and second not in x]:
                    assert proved([(reporter, one), (second, other)]) <= {liar}


def test_after_a_second_attempt_the_peer_that_is_doubted_most_goes() -> None:
    everyone = {A, B, C, D}
    assert least_trusted([about(A, B), about(C, B)], everyone) is None, "another owner is enough"
    again = [about(A, B), about(A, C, stamp=TWO)]
    assert least_trusted(again, everyone) == A, "it alone complains, about one after the other"
    pairs = [about(A, B, C), about(A, B, D, stamp=TWO), about(C, B, stamp=TWO)]
    assert least_trusted(pairs, everyone) == B
    assert least_trusted(again, {C, D}) == C, "of those that are there"


def test_a_complaint_names_the_owner_and_not_its_reporter() -> None:
    plan = training().run_state.open_plan(0)
    assert plan is not None
    stamp = plan.stamp

    def fits(reporter: PeerId, part: int, *peers: PeerId) -> bool:
        return Complaint(reporter, stamp, part, frozenset(peers)).fits(plan)

    assert fits(B, 0, A)
    assert fits(B, 0, A, C)
    assert not fits(B, 0, C), "C does not own part 0"
    assert not fits(A, 0, A)
    assert not fits(B, 0, A, D), "D is not in the roster"
    assert not fits(D, 0, A)
    assert not fits(B, 9, A)
