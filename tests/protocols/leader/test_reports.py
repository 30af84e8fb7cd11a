"""What the leader remembers of what it is told, and what it refuses to remember."""

from dataclasses import replace

import pytest

from protocols.interface import events as v
from protocols.leader.joins import Joins
from protocols.leader.reports import Reports, RoundReports
from protocols.messages import log_entries as e
from protocols.messages.peer import ContributionOffered, Have, Hold, WaitsForPeers
from protocols.state.sample_ledger import CLAIM_RANGES_MAX
from protocols.types.clock import NEVER
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import Contributor, FragmentParts, PeerId, Stamp, Version, digest_text
from protocols.types.sample_ranges import RANGES_MAX, Grant, SampleRange, Samples
from tests.protocols.fragment import Peer
from tests.protocols.led import keep_alive, last, say, three, written
from tests.protocols.scenes import (
    RULES,
    START,
    A,
    B,
    C,
    D,
    caught_up,
    contributor,
    join,
    view,
)

X, Y, Z = (digest_text(text) for text in "xyz")


def told() -> tuple[Reports, Peer]:
    """A's reports about a run of A, B and C; `Peer` holds the log."""
    peer = Peer()
    return Reports(A, peer.run_state), peer


def has(reports: Reports, digest: str, *peers: PeerId, round_: int = 0) -> list[str]:
    return [reports.has(peer, Have(reports.run_state.lineage, 0, round_, digest)) for peer in peers]


def test_reports_about_the_open_round_are_remembered() -> None:
    reports, peer = told()
    reports.ready(B, ContributionOffered(peer.stamp(), contributor(B)), 5.0)
    reports.hold(B, Hold(peer.stamp(), X))
    reports.waits(B, WaitsForPeers(peer.stamp(), (C, C)))
    plan, noted = reports.open_round(0)
    assert plan is not None
    assert noted is not None
    assert (noted.ready, noted.ready_at) == ({B: contributor(B)}, {B: 5.0})
    assert noted.holders(plan) == {B: X}
    assert noted.complaints(plan) == {C: 1}, "one complaint each, however often it names somebody"


def test_all_hold_a_result_if_nobody_lacks_it_or_has_another_one() -> None:
    reports, peer = told()
    for holder in (A, B):
        reports.hold(holder, Hold(peer.stamp(), X))
    plan, noted = reports.open_round(0)
    assert plan is not None
    assert noted is not None
    assert noted.is_held_by((A, B), plan, X)
    assert not noted.is_held_by((A, B, C), plan, X), "C may ask for it"
    reports.hold(C, Hold(peer.stamp(), Y))
    assert not noted.is_held_by((A, B, C), plan, X)
    reports.hold(C, Hold(peer.stamp(attempt=1), X))
    assert not noted.is_held_by((A, B, C), plan, X), "of another attempt"


def test_who_tears_up_its_lease_is_not_ready() -> None:
    """What is left of it could not be said in any message, nor in a checkpoint."""
    reports, peer = told()
    held = Grant(B, (SampleRange(0, 1 << 20),))
    peer.reads(e.Lease((held,)))
    ledger, at = peer.run_state.ledger, 1
    while len(ledger.held_by(B, 1)) + RANGES_MAX <= CLAIM_RANGES_MAX:
        ledger.committed(B, torn(at))
        at += 2 * RANGES_MAX
    reports.ready(B, ContributionOffered(peer.stamp(), contributor(B), torn(at)), 0.0)
    noted = reports.open_round(0)[1]
    assert noted is not None
    assert noted.ready == {}
    reports.ready(B, ContributionOffered(peer.stamp(), contributor(B), (SampleRange(0, 1),)), 0.0)
    assert noted.ready == {B: contributor(B)}


def torn(first: int) -> Samples:
    return tuple(SampleRange(first + 2 * n, first + 2 * n + 1) for n in range(RANGES_MAX))


def test_the_first_contribution_of_a_peer_stays() -> None:
    reports, peer = told()
    reports.ready(B, ContributionOffered(peer.stamp(), contributor(B)), 5.0)
    reports.ready(B, ContributionOffered(peer.stamp(), contributor(B, 2)), 6.0)
    noted = reports.open_round(0)[1]
    assert noted is not None
    assert (noted.ready[B], noted.ready_at[B]) == (contributor(B), 5.0)


@pytest.mark.parametrize(("round_", "fragment"), [(0, 0), (2, 0), (99, 0), (1, 1)])
def test_reports_about_what_is_not_open_cost_nothing(round_: int, fragment: int) -> None:
    reports, peer = told()
    stamp = Stamp(1, peer.run_state.lineage, 1, fragment, round_, 0)
    reports.ready(B, ContributionOffered(stamp, contributor(B)), 0.0)
    reports.hold(B, Hold(stamp, X))
    reports.waits(B, WaitsForPeers(stamp, (C,)))
    assert reports.rounds == {}


@pytest.mark.parametrize(
    "wrong", [contributor(C), Contributor(B, 0, 1, X), Contributor(B, 1, 1, "")]
)
def test_a_false_contribution_is_the_reporters_fault(wrong: Contributor) -> None:
    reports, peer = told()
    with pytest.raises(RemoteProtocolError):
        reports.ready(B, ContributionOffered(peer.stamp(), wrong), 0.0)


def test_holds_and_complaints_of_a_stale_attempt_do_not_count() -> None:
    reports, peer = told()
    reports.hold(B, Hold(peer.stamp(), X))
    reports.waits(B, WaitsForPeers(peer.stamp(), (C,)))
    peer.leaves(A, B)
    plan, noted = reports.open_round(0)
    assert plan is not None
    assert noted is not None
    assert noted.holders(plan) == {}
    assert not noted.complaints(plan)


def test_only_owners_of_the_attempt_say_what_cannot_be_averaged() -> None:
    reports, peer = told()
    reports.waits(B, WaitsForPeers(peer.stamp(), (C,), void=True))
    plan, noted = reports.open_round(0)
    assert plan is not None
    assert noted is not None
    assert noted.voided(plan) == {C}
    assert not noted.complaints(plan), "nobody is slow"
    assert noted.voided(replace(plan, parts=FragmentParts((A,), (0, 9)))) == set()
    peer.leaves(A, B)
    later, _ = reports.open_round(0)
    assert later is not None
    assert noted.voided(later) == set(), "of another attempt"
    reports.forget(B)
    assert noted.void == {}


def test_what_an_owner_cannot_average_is_left_out_unless_it_is_all() -> None:
    reports, peer = told()
    all_three = {A, B, C}
    for void, left in (((), all_three), ((C,), {A, B}), ((A, C), {B}), ((A, B, C), all_three)):
        reports.waits(B, WaitsForPeers(peer.stamp(), void, void=True))
        plan, noted = reports.open_round(0)
        assert plan is not None
        assert noted is not None
        why = "what it contributed cannot be averaged" if left != all_three else ""
        assert reports.fit(plan, noted, all_three) == (left, why)


def test_the_clock_of_a_reduction_starts_when_the_last_one_is_ready_and_with_each_attempt() -> None:
    reports, peer = told()
    for at, who in enumerate((A, B, C)):
        plan, noted = reports.open_round(0)
        if noted is not None and plan is not None:
            noted.start_clock(plan, float(at))
            assert noted.plan is None
        reports.ready(who, ContributionOffered(peer.stamp(), contributor(who)), float(at))
    plan, noted = reports.open_round(0)
    assert plan is not None
    assert noted is not None
    reports.waits(A, WaitsForPeers(peer.stamp(), (C,)))
    noted.start_clock(plan, 7.0)
    assert noted.complaints(plan) == {}, "C has contributed meanwhile"
    reports.waits(A, WaitsForPeers(peer.stamp(), (B,)))
    noted.start_clock(plan, 8.0)
    assert (noted.plan, noted.plan_since) == (plan.stamp, 7.0)
    assert noted.complaints(plan) == {B: 1}
    peer.leaves(A, B)
    plan, noted = reports.open_round(0)
    assert plan is not None
    assert noted is not None
    noted.start_clock(plan, 9.0)
    assert noted.plan_since == 9.0


def test_what_a_restarted_peer_said_in_its_earlier_life_is_forgotten() -> None:
    reports, peer = told()
    for who in (A, B):
        reports.ready(who, ContributionOffered(peer.stamp(), contributor(who)), 0.0)
        reports.hold(who, Hold(peer.stamp(), X))
        reports.waits(who, WaitsForPeers(peer.stamp(), (C,)))
        has(reports, START, who)
    reports.forget(B)
    noted = reports.open_round(0)[1]
    assert noted is not None
    for table in (noted.ready, noted.ready_at, noted.holds, noted.waiting, reports.states(0, 0)):
        assert list(table) == [A]


def test_a_state_that_differs_from_the_majoritys_is_named() -> None:
    reports, _ = told()
    assert has(reports, X, B, C) == ["", ""]
    assert has(reports, Y, A) == ["differs at round 0"]
    assert reports.majority_digest(0, 0) == reports.sure_digest(0, 0) == X


def test_without_a_majority_nobody_differs_and_the_members_are_split() -> None:
    """Who of them is wrong, nobody knows, we ourselves included."""
    reports, _ = told()
    assert has(reports, X, A) == has(reports, Y, B) == [""]
    assert not reports.is_split(0, set()), "C may decide it"
    assert has(reports, Z, C) == [""]
    assert reports.is_split(0, set())
    assert reports.sure_digest(0, 0) == ""
    assert reports.majority_digest(0, 0) == X, "ours, among equals"
    assert has(reports, Y, C) == [""]
    assert not reports.is_split(0, set())
    assert has(reports, X, A) == ["differs at round 0"]


def test_who_asks_for_a_state_decides_nothing_between_those_who_differ() -> None:
    """Seed 1345: the two that held one differed, and the third was given either of them."""
    reports, _ = told()
    assert has(reports, X, A) == has(reports, Y, B) == [""]
    assert reports.is_split(0, {C})
    assert not reports.is_split(0, {B, C}), "the only one that holds a state"
    assert not reports.is_split(0, {A, B, C})


def test_members_that_are_at_different_rounds_are_not_split() -> None:
    reports, peer = told()
    has(reports, X, A)
    has(reports, Y, B)
    peer.commits(A, B, C)
    has(reports, Z, C, round_=1)
    assert not reports.is_split(0, set())


def test_after_a_restore_nothing_that_was_said_holds() -> None:
    reports, peer = told()
    reports.ready(B, ContributionOffered(peer.stamp(), contributor(B)), 0.0)
    reports.hold(B, Hold(peer.stamp(), X))
    reports.waits(C, WaitsForPeers(peer.stamp(), (B,)))
    has(reports, X, A, B, C)
    peer.reads(restore(peer))
    assert (reports.rounds, reports.said.have, reports.newest_of(B)) == ({}, {}, ())
    assert reports.open_round(0) == (None, None)
    peer.reads(view(1, A, B, C))
    assert reports.states(0, 0) == {}
    assert reports.open_round(0)[1] is None, (
        "the same round of the same fragment, in another lineage"
    )


def test_what_was_said_before_a_restore_and_comes_after_it_counts_for_nothing() -> None:
    reports, peer = told()
    before = peer.stamp()
    peer.reads(restore(peer), view(1, A, B, C))
    reports.ready(B, ContributionOffered(before, contributor(B)), 0.0)
    reports.hold(B, Hold(before, X))
    reports.waits(C, WaitsForPeers(before, (B,)))
    reports.waits(C, WaitsForPeers(before, (B,), void=True))
    assert (reports.rounds, peer.stamp().round) == ({}, before.round)
    reports.ready(B, ContributionOffered(peer.stamp(), contributor(B)), 0.0)
    assert [set(each.ready) for each in reports.rounds.values()] == [{B}]


def restore(peer: Peer) -> e.Restore:
    """Back to the beginning."""
    return e.Restore(peer.run_state.lineage, (Version(0, 0, START),), 0, 0, (), 0, False, 1)


def test_without_reports_there_is_no_digest() -> None:
    reports, _ = told()
    assert reports.majority_digest(0, 0) == reports.sure_digest(0, 0) == ""


@pytest.mark.parametrize(("fragment", "round_"), [(0, 1), (1, 0), (0, 1 << 31)])
def test_a_state_that_was_never_committed_is_a_lie(fragment: int, round_: int) -> None:
    reports, _ = told()
    with pytest.raises(RemoteProtocolError, match="never committed"):
        reports.has(B, Have(reports.run_state.lineage, fragment, round_, X))


def test_a_state_of_another_lineage_is_no_news() -> None:
    """A Restore took it back: it differs from nothing, and it is no lie."""
    reports, peer = told()
    for round_ in (0, 99):
        assert reports.has(B, Have(peer.run_state.lineage ^ 1, 0, round_, X)) == ""
    assert reports.said.have == {}


def test_only_the_last_two_rounds_states_are_kept_and_an_older_report_differs_from_nothing() -> (
    None
):
    """Seed 8: a late report about a round whose others were forgotten was called diverged."""
    reports, peer = told()
    for round_ in range(1, 6):
        has(reports, X, A, B, round_=round_ - 1)
        peer.commits(A, B, C)
    assert {round_ for _, round_ in reports.said.have} <= {3, 4, 5}
    assert has(reports, Y, C, round_=1) == [""]
    assert {round_ for _, round_ in reports.said.have} == {4}


def test_who_finds_its_own_state_damaged_is_not_believed_about_it() -> None:
    reports, peer = told()
    has(reports, START, A, B)
    joins = Joins(A, peer.run_state, reports)
    joins.join(B, join(B, "our state is damaged", against=B), 0.0)
    assert reports.states(0, 0) == {A: START}


def test_who_found_in_the_log_what_it_asked_for_asks_no_more() -> None:
    """Seed 2101252: the only member had asked before it read that its checkpoint is the state, and
    so it was nobody's donor."""
    reports, peer = told()
    joins = Joins(A, peer.run_state, reports)
    joins.join(B, join(B, "restarted", incarnation=2), 0.0)
    joins.has_caught_up(B, caught_up(B, 0, incarnation=2))
    assert (joins.joins, joins.asked_at) == ({}, {})


def test_the_grace_window_opens_with_the_quorum() -> None:
    """Of two here. One alone waits for another one, however long that takes."""
    scene = three()
    scene.on(v.RunAccepted(replace(RULES, quorum=2)))
    say(scene, "ready", B)
    keep_alive(scene, 3 * RULES.round_grace_s, B, C, D)
    assert written(scene, e.Attempt) == []
    say(scene, "ready", C)
    keep_alive(scene, RULES.round_grace_s - 1, B, C, D)
    assert written(scene, e.Attempt) == []
    keep_alive(scene, 2.0, B, C, D)
    assert last(scene, e.Attempt).roster == (B, C)


def test_of_fewer_than_the_quorum_all_are_enough() -> None:
    """And nobody's readiness counts for those who are left."""
    reports = RoundReports(ready_at={A: 3.0, B: 5.0, C: 4.0})
    assert reports.enough_at({A, B, C}, 1) == 3.0
    assert reports.enough_at({A, B, C}, 2) == 4.0
    assert reports.enough_at({B, C}, 2) == 5.0
    assert reports.enough_at({B, C}, 9) == 5.0
    assert reports.enough_at({A, D}, 2) == NEVER
    assert reports.enough_at(set(), 2) == NEVER
