"""What is held of a round: the first bytes of each peer, and digests over complete results."""

import pytest

from protocols.rounds.contributions import Holdings, OwnContribution, PartResult, check_contributor
from protocols.state.round_plan import RoundPlan
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import Contributor, FragmentParts, Stamp, digest_text
from protocols.types.limits import CONTRIBUTION_STEPS_MAX, CONTRIBUTION_TOKENS_MAX
from tests.protocols.scenes import BORDERS, A, B, C, contributor, manifest

STAMP = Stamp(1, 2, 1, 0, 1, 0)
LATER = Stamp(1, 2, 1, 0, 1, 1)
PLAN = RoundPlan(STAMP, (A, B), FragmentParts((A, B, A), BORDERS))
TERMS = (contributor(A), contributor(B))


def complete(*digests: str, stamp: Stamp = STAMP) -> Holdings:
    held = Holdings()
    for part, digest in enumerate(digests):
        held.add_result(stamp, part, PartResult(TERMS, digest))
    return held


def test_a_contribution_is_named_by_its_bytes() -> None:
    own = OwnContribution(round=1, tokens=100, steps=10, since=0.0, manifest=manifest(A, 1))
    assert own.contributor(A) == contributor(A)


@pytest.mark.parametrize(
    "bad",
    [
        Contributor(B, 1, 1, digest_text("x")),
        Contributor(A, 0, 1, digest_text("x")),
        Contributor(A, 1, 1, ""),
        Contributor(A, CONTRIBUTION_TOKENS_MAX + 1, 1, digest_text("x")),
        Contributor(A, 1, CONTRIBUTION_STEPS_MAX + 1, digest_text("x")),
    ],
)
def test_somebody_elses_or_empty_or_boundless_contributions_are_the_senders_fault(
    bad: Contributor,
) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_contributor(bad, A)
    assert caught.value.peer == A


def test_the_first_slice_of_a_peer_stays() -> None:
    """A restarted peer's slice must not be summed with its first one's other parts."""
    held = Holdings()
    assert held.add_slice(STAMP, 0, contributor(A))
    assert held.add_slice(STAMP, 0, contributor(A)), "the same bytes again"
    assert not held.add_slice(STAMP, 0, contributor(A, 2))
    assert held.terms(RoundPlan(STAMP, (A,), PLAN.parts), 0, A) == (contributor(A),)


def test_a_sum_waits_for_all_of_the_roster_and_takes_only_the_roster() -> None:
    held = Holdings()
    held.add_slice(STAMP, 0, contributor(C))
    held.add_slice(STAMP, 0, contributor(B))
    assert held.terms(PLAN, 0, B) == ()
    assert held.absent(PLAN, 0, B) == {A}
    held.add_slice(STAMP, 0, contributor(A))
    assert held.terms(PLAN, 0, B) == TERMS, "sorted, and without c"
    assert held.absent(PLAN, 0, B) == set()
    assert held.absent(PLAN, 1, B) == {A, B}, "another part"


def test_a_new_attempt_uses_the_slices_of_the_old_one() -> None:
    held = Holdings()
    for peer in (A, B):
        held.add_slice(STAMP, 0, contributor(peer))
    assert held.terms(RoundPlan(LATER, (A,), PLAN.parts), 0, A) == (contributor(A),)
    other_view = Stamp(1, 2, 2, 0, 1, 0)
    assert held.terms(RoundPlan(other_view, (A,), PLAN.parts), 0, A) == ()


def test_the_first_result_of_a_part_stays() -> None:
    held = complete("x")
    assert not held.add_result(STAMP, 0, PartResult(TERMS, "y"))
    assert held.result(STAMP, 0) == PartResult(TERMS, "x")
    assert held.result(STAMP, 1) is None
    assert held.add_result(LATER, 0, PartResult(TERMS, "y")), "of another attempt"


def test_a_digest_needs_all_parts_with_equal_terms() -> None:
    assert complete("x", "y").digest(STAMP, 3) == ""
    assert complete("x", "y").missing_parts(STAMP, 3) == [2]
    whole = complete("x", "y", "z")
    assert whole.digest(STAMP, 3) != ""
    assert whole.digest(LATER, 3) == ""
    whole.results[STAMP][1] = PartResult(TERMS[:1], "y")
    assert whole.digest(STAMP, 3) == ""


def test_as_many_parts_as_needed_but_the_wrong_ones_make_no_digest() -> None:
    held = complete("x", "y")
    held.add_result(STAMP, 5, PartResult(TERMS, "z"))
    assert held.digest(STAMP, 3) == ""


def test_a_digest_tells_bytes_terms_and_weights_apart() -> None:
    digests = {
        complete("x", "y").digest(STAMP, 2),
        complete("y", "x").digest(STAMP, 2),
        complete("x", "y", "z").digest(STAMP, 2),
    }
    assert len(digests) == 2, "parts beyond the last one say nothing"
    for terms in ((contributor(A),), (contributor(A, tokens=7), contributor(B))):
        held = Holdings()
        for part, digest in enumerate(("x", "y")):
            held.add_result(STAMP, part, PartResult(terms, digest))
        digests.add(held.digest(STAMP, 2))
    assert len(digests) == 4


def test_what_is_dropped_is_gone_and_later_rounds_stay() -> None:
    next_round = Stamp(1, 2, 1, 0, 2, 0)
    held = complete("x")
    held.add_result(next_round, 0, PartResult(TERMS, "y"))
    for stamp in (STAMP, next_round):
        held.add_slice(stamp, 0, contributor(A))
    held.drop_slices(1)
    assert list(held.slices) == [(2, 1, 0)]
    assert held.drop_results(1)
    assert not held.drop_results(1)
    assert list(held.results) == [next_round]
