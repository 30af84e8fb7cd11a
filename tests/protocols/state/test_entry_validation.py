"""Each way in which an entry of the log can make no sense, and that it then changes nothing."""

from copy import deepcopy
from dataclasses import replace

import pytest

from protocols.messages import log_entries as e
from protocols.raft.log import Log
from protocols.state import transitions
from protocols.state.entry_validation import name_of_state, objection
from protocols.state.parts import undivided
from protocols.state.run_state import RunState
from protocols.state.tokens import NO_TERMS
from protocols.types.errors import LogError
from protocols.types.ids import Contributor, FragmentParts, PeerId, Version
from protocols.types.sample_ranges import Grant, Remaining, SampleRange
from tests.protocols.scenes import (
    ELEMENTS,
    START,
    STRANGER,
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

VERSION = Version(0, 0, START)
CUT = e.Cut(info(B, 1), (A,), (VERSION,))
ROOT = "0" * 64
BEGUN = (run(), e.Member(info(A)), CUT, e.Member(info(B, 1)))
GOSSIP = (replace(run(), gossip=True), *BEGUN[1:])
VIEW = view(1, A, B)
COMMIT = e.Commit(
    view=1,
    fragment=0,
    round=1,
    attempt=0,
    contributors=(contributor(A), contributor(B)),
    borders=VIEW.parts[0].borders,
    result_digest=part_digest(0),
    previous_state_digest="",
)
ATTEMPT = e.Attempt(1, 0, 1, 1, (A,), (A, A, A), "without b")
PARTS = VIEW.parts[0]


def parts(*owners: str, borders: tuple[int, ...] = PARTS.borders) -> tuple[FragmentParts, ...]:
    return (FragmentParts(owners or PARTS.owners, borders),)  # pyright: ignore


RESTORE = e.Restore(1, (VERSION,), 0, 0, (), 0, False, 1)


def lease(*grants: tuple[PeerId, int, int]) -> e.Lease:
    return e.Lease(tuple(Grant(p, (SampleRange(start, stop),)) for p, start, stop in grants))


@pytest.mark.parametrize(
    ("before", "body", "says"),
    [
        ((), e.Member(info(A)), "only Run"),
        (BEGUN, run(), "only Run"),
        ((), replace(run(), fragment_elements=()), "an empty Run"),
        ((), replace(run(), fragment_elements=(0,)), "an empty Run"),
        ((), replace(run(), grain=0), "an empty Run"),
        ((), replace(run(), outer_steps=0), "an empty Run"),
        ((), replace(run(), peers_min=0), "an empty Run"),
        ((), e.Restore(1, (VERSION,), 0, 0, (), 0, False, 1), "only Run"),
        ((), e.Elected(A), "only Run"),
        (BEGUN, e.Voter(C, votes=True, why=""), "nothing about the vote of c"),
        (BEGUN, e.Voter(A, votes=True, why=""), "nothing about the vote of a"),
        (BEGUN, e.Voter(B, votes=False, why=""), "nothing about the vote of b"),
        ((*BEGUN, VIEW), e.Restore(1, (), 0, 0, (), 0, False, 1), "every fragment"),
        ((run(),), e.Restore(1, (), 0, 0, (), 0, False, 1), "every fragment"),
        ((run(),), e.Restore(1, (Version(1, 0, START),), 0, 0, (), 0, False, 1), "every fragment"),
        (BEGUN, replace(CUT, info=info(C), donors=(A, C)), "donor"),
        (BEGUN, replace(CUT, info=info(C), donors=(A, STRANGER)), "donor"),
        (BEGUN, replace(CUT, info=info(C), donors=()), "without donors"),
        (BEGUN, replace(CUT, info=info(C), donors=(A, A)), "one twice"),
        (BEGUN, replace(CUT, info=info(C), roots=(ROOT,)), "with roots"),
        (BEGUN, e.Roots(C, 4, (ROOT,)), "no cut of c"),
        (BEGUN, e.Roots(B, 4, (ROOT,)), "no cut of b"),
        (BEGUN, e.Roots(B, 3, (ROOT, ROOT)), "lacks a root"),
        (BEGUN, e.Roots(B, 3, ("",)), "lacks a root"),
        ((*BEGUN, e.Roots(B, 3, (ROOT,))), e.Roots(B, 3, (ROOT,)), "no cut of b"),
        (BEGUN, replace(CUT, info=info(C), versions=()), "cuts at"),
        (BEGUN, replace(CUT, info=info(C), versions=(Version(0, 1, START),)), "cuts at"),
        (BEGUN, replace(CUT, info=info(C), versions=(Version(1, 0, START),)), "cuts at"),
        (BEGUN, e.Member(info(C)), "without a cut"),
        (BEGUN, e.Left(C, ""), "not there"),
        (BEGUN, e.Lost(C, ""), "not there"),
        (BEGUN, view(2, A, B), "View 2 after 0"),
        ((*BEGUN, VIEW), view(1, A), "View 1 after 1"),
        (BEGUN, view(1), "roster"),
        (BEGUN, view(1, B, A), "roster"),
        (BEGUN, view(1, A, A), "roster"),
        (BEGUN, view(1, A, C), "roster"),
        (BEGUN, replace(VIEW, parts=()), "every fragment"),
        (BEGUN, replace(VIEW, first_round=()), "every fragment"),
        (BEGUN, view(1, A, first_round=0), "from round 0"),
        (BEGUN, view(1, A, first_round=3), "from round 3"),
        (BEGUN, replace(VIEW, parts=parts(C, A, A)), "impossible parts"),
        (BEGUN, replace(VIEW, parts=parts(A, A)), "impossible parts"),
        (BEGUN, replace(VIEW, parts=parts(A, borders=(0, ELEMENTS - 1))), "impossible parts"),
        (BEGUN, replace(VIEW, parts=parts(A, borders=(1, ELEMENTS))), "impossible parts"),
        (BEGUN, replace(VIEW, parts=parts(A, B, borders=(0, 9, 8))), "impossible parts"),
        (BEGUN, replace(VIEW, parts=(undivided(ELEMENTS),)), "impossible parts"),
        (GOSSIP, VIEW, "impossible parts"),
        (GOSSIP, replace(VIEW, parts=(undivided(ELEMENTS - 1),)), "impossible parts"),
        (
            BEGUN,
            replace(VIEW, parts=parts(A, B, A, borders=(0, 9, 8, ELEMENTS))),
            "impossible parts",
        ),
        (BEGUN, ATTEMPT, "not open"),
        ((*BEGUN, VIEW), replace(ATTEMPT, fragment=1), "not open"),
        ((*BEGUN, VIEW), replace(ATTEMPT, round=2), "not open"),
        ((*BEGUN, VIEW), replace(ATTEMPT, attempt=2), "after"),
        ((*BEGUN, VIEW), replace(ATTEMPT, view=2), "after"),
        ((*BEGUN, VIEW), replace(ATTEMPT, roster=()), "roster"),
        ((*BEGUN, VIEW), replace(ATTEMPT, roster=(B, A)), "roster"),
        ((*BEGUN, VIEW), replace(ATTEMPT, roster=(A, C)), "roster"),
        ((*BEGUN, VIEW), replace(ATTEMPT, owners=(A, A)), "owners"),
        ((*BEGUN, VIEW), replace(ATTEMPT, owners=(A, A, B)), "owners"),
        (BEGUN, COMMIT, "out of order"),
        ((*BEGUN, VIEW), replace(COMMIT, fragment=1), "out of order"),
        ((*BEGUN, VIEW), replace(COMMIT, round=2), "out of order"),
        ((*BEGUN, VIEW, COMMIT), COMMIT, "out of order"),
        ((*BEGUN, VIEW), replace(COMMIT, view=2), "another attempt"),
        ((*BEGUN, VIEW), replace(COMMIT, attempt=1), "another attempt"),
        ((*BEGUN, VIEW, ATTEMPT), COMMIT, "another attempt"),
        ((*BEGUN, VIEW), replace(COMMIT, contributors=(contributor(A),)), "another roster"),
        (
            (*BEGUN, VIEW),
            replace(COMMIT, contributors=(contributor(B), contributor(A))),
            "another roster",
        ),
        ((*BEGUN, VIEW), replace(COMMIT, borders=(0, ELEMENTS)), "another result"),
        ((*BEGUN, VIEW), replace(COMMIT, result_digest=""), "another result"),
        ((*BEGUN, VIEW), replace(COMMIT, samples=((),)), "samples that do not fit"),
        (
            (*BEGUN, VIEW),
            replace(COMMIT, samples=((SampleRange(3, 3),), ())),
            "samples that do not fit",
        ),
        (BEGUN, replace(RESTORE, remaining=Remaining(9, (SampleRange(5, 4),))), "invalid set"),
        (BEGUN, replace(RESTORE, remaining=Remaining(9, (SampleRange(5, 10),))), "invalid set"),
        (BEGUN, lease(), "to no peer"),
        (BEGUN, lease((A, 0, 5), (A, 5, 9)), "twice"),
        (BEGUN, lease((C, 0, 5)), "no member"),
        (BEGUN, lease((A, 5, 5)), "invalid set of samples"),
        (BEGUN, lease((A, 5, 9)), "leaves some out"),
        (BEGUN, lease((A, 0, 5), (B, 4, 9)), "new samples twice"),
        ((*BEGUN, lease((A, 0, 5))), lease((B, 4, 9)), "not free"),
    ],
)
def test_an_entry_without_sense_changes_nothing(
    before: tuple[e.Entry, ...], body: e.Entry, says: str
) -> None:
    log = log_of(*before)
    run_state = members_of(log)
    untouched = deepcopy(run_state)
    entry = e.LogEntry(log.last_index + 1, 1, body)

    with pytest.raises(LogError, match=says) as caught:
        transitions.apply(run_state, entry)

    assert run_state == untouched
    assert f"entry {entry.index} of the log" in str(caught.value)


def test_elections_and_votes_make_sense_in_between() -> None:
    votes = (e.Voter(B, votes=True, why=""), e.Elected(B), e.Voter(A, votes=False, why=""))
    assert members_of(log_of(*BEGUN, *votes)).voters == (B,)


def test_a_restore_may_stand_anywhere_after_the_run() -> None:
    restore = e.Restore(1, (VERSION,), 0, 0, (), 0, False, 1)
    assert members_of(log_of(*BEGUN, VIEW, COMMIT, restore, restore)).committed(0) == 0


def test_a_restarted_member_is_one_again_without_a_cut_only_after_a_restore() -> None:
    """Its own checkpoint is the state that the run went back to."""
    restore = e.Restore(1, (VERSION,), 0, 0, (), 0, False, 1)
    again = e.Member(info(B, 1, incarnation=2))
    assert members_of(log_of(*BEGUN, restore, again)).members[B].incarnation == 2
    with pytest.raises(LogError, match="without a cut"):
        members_of(log_of(*BEGUN, again))
    with pytest.raises(LogError, match="without a cut"):
        members_of(log_of(*BEGUN, restore, e.Member(info(B, 1))))


def test_what_a_leader_writes_makes_sense() -> None:
    smaller = replace(COMMIT, attempt=1, contributors=(contributor(A),))
    left = e.Left(B, "asked to leave")
    run_state = members_of(log_of(*BEGUN, VIEW, ATTEMPT, smaller, left, view(2, A, first_round=2)))
    assert run_state.committed(0) == 1
    assert [each.view for each in run_state.views] == [2]


def test_a_commit_lists_what_the_leader_heard() -> None:
    """Tokens and manifests are the contributors' own: only the roster can be checked."""
    other = (Contributor(A, 1, 1, part_digest(7)), contributor(B))
    assert members_of(log_of(*BEGUN, VIEW, replace(COMMIT, contributors=other))).committed(0) == 1


def test_an_empty_membership_equals_an_empty_log() -> None:
    assert members_of(Log()) == RunState()


def test_a_member_of_an_encrypted_run_names_its_state() -> None:
    admitted = e.TokenSpent(NO_TERMS, B, "0b" * 32, b"", b"x", b"x")
    begun = (replace(run(), root="0a" * 32), replace(admitted, peer=A), e.Member(info(A)), admitted)
    named = e.Member(info(B, 1), name_of_state([ROOT]))
    run_state = RunState()
    for number, body in enumerate((*begun, CUT), 1):
        transitions.apply(run_state, e.LogEntry(number, 1, body), judged=True)
    assert "another state than the log" in objection(run_state, e.Member(info(B, 1)))
    assert "another state" in objection(run_state, named), "the log has no roots yet"
    transitions.apply(run_state, e.LogEntry(6, 1, e.Roots(B, 5, (ROOT,))))
    assert "another state" in objection(run_state, e.Member(info(B, 1)))
    assert "another state" in objection(run_state, e.Member(info(B, 1), name_of_state([START])))
    assert objection(run_state, named) == ""


def test_a_member_that_returns_with_a_checkpoint_names_the_restored_state() -> None:
    admitted = e.TokenSpent(NO_TERMS, A, "0b" * 32, b"", b"x", b"x")
    begun = (replace(run(), root="0a" * 32), admitted, e.Member(info(A)), RESTORE)
    run_state = RunState()
    for number, body in enumerate(begun, 1):
        transitions.apply(run_state, e.LogEntry(number, 1, body), judged=True)
    again = info(A, incarnation=2)
    assert "another state" in objection(run_state, e.Member(again, name_of_state([ROOT])))
    assert objection(run_state, e.Member(again, name_of_state([START]))) == ""
