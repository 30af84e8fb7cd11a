"""Which act counts next: each one once, in one lineage, by an operator of that moment."""

from dataclasses import replace

import pytest

from protocols.acts.authority import LATE, Authority, lineage_after, unproved
from protocols.messages import log_entries as e
from protocols.types.ids import Version
from tests.protocols.scenes import SEALS, START, A, B, ordered, run, steered

ROOT, ALICE, BOB = "aa" * 32, "bb" * 32, "cc" * 32
RUN = replace(run(), root=ROOT, voters_steer=False)
BEGUN = Authority().after(e.LogEntry(1, 1, RUN))
PAUSE = steered("pause", lineage=BEGUN.lineage)


def after(authority: Authority, *acts: e.Entry) -> Authority:
    for index, act in enumerate(acts, 2):
        authority = authority.after(e.LogEntry(index, 1, act))
    return authority


def why(authority: Authority, act: e.Act) -> str:
    return unproved(authority, act, SEALS)


def test_an_act_counts_once_and_a_captured_one_never_again() -> None:
    pause = ordered(PAUSE, ROOT)
    assert why(BEGUN, pause) == ""
    paused = after(BEGUN, pause)
    assert why(paused, pause) == LATE
    on = ordered(steered("continue", number=2, lineage=BEGUN.lineage), ROOT)
    assert why(paused, on) == ""
    assert why(after(paused, on), pause) == LATE
    assert "has not signed" in why(after(paused, on), replace(pause, number=3))


@pytest.mark.parametrize(
    "change",
    [
        {"what": "continue"},
        {"subject": "x"},
        {"value": "1"},
        {"why": "other"},
        {"unix_s": 5},
    ],
)
def test_the_signature_is_of_every_word(change: dict[str, str]) -> None:
    assert "has not signed" in why(BEGUN, replace(ordered(PAUSE, ROOT), **change))
    assert why(BEGUN, replace(ordered(PAUSE, ROOT), by=B)) == "", "any peer hands it on"


def test_a_rollback_makes_an_act_void_that_is_not_in_the_log_yet() -> None:
    restore = e.Restore(5, (Version(0, 0, START),), 0, 0, (), 0, lonely=False, salt=3)
    later = after(BEGUN, restore)
    assert later.lineage == lineage_after(BEGUN.lineage, e.LogEntry(2, 1, restore))
    assert why(later, ordered(PAUSE, ROOT)) == LATE
    assert why(later, ordered(replace(PAUSE, lineage=later.lineage), ROOT)) == ""


def test_only_an_operator_of_that_moment_signs() -> None:
    here = BEGUN.lineage
    add = ordered(steered("add operator", ALICE, lineage=here), ROOT)
    assert "no operator" in why(BEGUN, ordered(PAUSE, ALICE, of=ROOT))
    with_alice = after(BEGUN, add)
    pause = replace(PAUSE, number=2)
    assert why(with_alice, ordered(pause, ALICE, of=ROOT)) == ""
    assert why(with_alice, ordered(e.Revoked(B, A, ""), ALICE, of=ROOT)) == ""
    assert "no operator" in why(with_alice, ordered(pause, BOB, of=ROOT))
    forged = replace(ordered(pause, ROOT), key=ALICE)
    assert "has not signed" in why(with_alice, forged)
    remove = ordered(steered("remove operator", ALICE, number=2, lineage=here), ROOT)
    without = after(with_alice, remove)
    assert "no operator" in why(without, ordered(replace(PAUSE, number=3), ALICE, of=ROOT))


def test_voters_steer_where_the_run_says_so_and_never_choose_operators() -> None:
    assert "run.steering" in why(BEGUN, PAUSE)
    voters = replace(BEGUN, run=replace(RUN, voters_steer=True))
    assert why(voters, PAUSE) == ""
    add = steered("add operator", ALICE, lineage=BEGUN.lineage)
    assert "only an operator" in why(voters, add)
    assert "run.revocations" in why(
        replace(BEGUN, run=replace(RUN, voters_revoke=False)), e.Revoked(B, A, "")
    )
