"""Payloads of other runs, lineages, rounds, views and attempts are told apart from those that
may still count."""

from dataclasses import replace

import pytest

from protocols.messages import log_entries as e
from protocols.rounds.fencing import PARKED_PLANS, PARKED_ROUNDS, Fence
from protocols.state.parts import OWNERS_MAX
from protocols.types.ids import Stamp, Version
from tests.protocols.scenes import (
    BORDERS,
    START,
    A,
    B,
    C,
    contributor,
    info,
    log_of,
    members_of,
    part_digest,
    run,
    view,
)

BEGUN = (
    run(),
    e.Member(info(A)),
    e.Cut(info(B, 1), (A,), (Version(0, 0, START),)),
    e.Member(info(B, 1)),
)
TERMS = (contributor(A), contributor(B))
COMMIT = e.Commit(1, 0, 1, 1, TERMS, BORDERS, part_digest(0), "")
ATTEMPT = e.Attempt(1, 0, 1, 1, (A, B), (A, B, A), "slow")


def fence(*bodies: e.Entry) -> Fence:
    return Fence(members_of(log_of(*BEGUN, *bodies)), 0)


def stamp(of: Fence, round_: int, *, number: int = 1, attempt: int = 0) -> Stamp:
    return Stamp(1, of.run_state.lineage, number, 0, round_, attempt)


def test_before_the_run_is_known_nothing_counts() -> None:
    empty = Fence(members_of(log_of()), 0)
    assert not empty.may_count(Stamp(0, 0, 0, 0, 1, 0))


def test_another_run_or_lineage_never_counts() -> None:
    here = fence(view(1, A, B))
    good = stamp(here, 1)
    assert here.may_count(good)
    assert not here.may_count(replace(good, run=2))
    assert not here.may_count(replace(good, lineage=good.lineage ^ 1))


def test_open_rounds_count_and_no_others() -> None:
    here = fence(view(1, A, B), ATTEMPT, COMMIT)
    counting = [n for n in range(6) if here.may_count(stamp(here, n))]
    assert counting == list(range(2, 2 + PARKED_ROUNDS))


def test_an_earlier_view_of_a_round_is_over_and_later_ones_are_parked() -> None:
    here = fence(view(1, A, B), view(2, A, B))
    counting = [n for n in range(9) if here.may_count(stamp(here, 1, number=n))]
    assert counting == list(range(2, 2 + PARKED_PLANS + 1))


def test_a_part_that_cannot_be_does_not_count() -> None:
    here = fence(view(1, A, B))
    assert here.may_count(stamp(here, 1), OWNERS_MAX - 1)
    assert not here.may_count(stamp(here, 1), OWNERS_MAX)
    assert not here.may_result(stamp(here, 2), OWNERS_MAX, A)


@pytest.mark.parametrize("attempt", range(4))
def test_slices_of_any_attempt_count(attempt: int) -> None:
    """A new attempt sums again from the bytes that came for the old one."""
    here = fence(view(1, A, B), ATTEMPT)
    assert here.may_count(stamp(here, 1, attempt=attempt))


def test_results_of_a_stale_attempt_do_not_count() -> None:
    here = fence(view(1, A, B), ATTEMPT)
    counting = [n for n in range(9) if here.may_result(stamp(here, 1, attempt=n), 0, A)]
    assert counting == list(range(1, 2 + PARKED_PLANS))


def test_only_its_owner_may_say_what_a_part_is() -> None:
    here = fence(view(1, A, B, owners=(A, B, A)))
    assert here.may_result(stamp(here, 1), 1, B)
    assert not here.may_result(stamp(here, 1), 1, A)
    assert not here.may_result(stamp(here, 1), 0, B)
    assert not here.may_result(stamp(here, 1), 3, A), "there are three parts"


def test_a_result_from_a_view_that_we_have_not_read_is_parked() -> None:
    here = fence(view(1, A, B))
    assert here.may_result(stamp(here, 1, number=2), 0, C)
    assert not here.may_result(stamp(here, 1, number=2, attempt=PARKED_PLANS), 0, C)


def test_after_the_commit_anybody_may_bring_the_committed_attempt() -> None:
    here = fence(view(1, A, B), ATTEMPT, COMMIT)
    assert here.may_result(stamp(here, 1, attempt=1), 2, B)
    assert not here.may_result(stamp(here, 1, attempt=1), 3, B)
    assert not here.may_result(stamp(here, 1, attempt=0), 2, B)
    assert here.stamp_of(COMMIT) == stamp(here, 1, attempt=1)
