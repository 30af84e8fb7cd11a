"""What a log leads to: members, plans, commits, and how little of the past is kept."""

from dataclasses import replace

from protocols import entries as e
from protocols.ids import PeerInfo, Stamp, Version
from protocols.membership import FORGIVE_ROUNDS, KEEP_COMMITS, Membership
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
    state_digest,
    view,
)

BEGUN = (run(outer_steps=99), e.Member(info(A)))
JOINED = (*BEGUN, e.Cut(info(B, 1), A, (Version(0, 0, START),)), e.Member(info(B, 1)))


def commit(round_: int, *, number: int = 1, steps: int = 10, attempt: int = 0) -> e.Commit:
    terms = tuple(replace(contributor(peer, round_), steps=steps) for peer in (A, B))
    return e.Commit(number, 0, 0, round_, attempt, terms, BORDERS, part_digest(0), "")


def read(*bodies: e.Entry) -> Membership:
    return members_of(log_of(*bodies))


def test_a_cut_makes_a_receiver_and_member_makes_a_member() -> None:
    members = read(*JOINED[:3])
    assert (list(members.members), list(members.joiners)) == ([A], [B])
    assert list(members.receivers) == [A, B]
    members = read(*JOINED)
    assert (list(members.members), list(members.joiners)) == ([A, B], [])
    assert members.cuts[B][0] == 3


def test_a_members_new_cut_leaves_it_a_member() -> None:
    members = read(*JOINED, e.Cut(info(B, 1), A, (Version(0, 0, START),)))
    assert B in members.members
    assert B not in members.joiners
    assert members.cuts[B][0] == 5


def test_who_is_gone_keeps_its_slot_of_the_data() -> None:
    members = read(*JOINED, e.Lost(B, "x"))
    assert list(members.receivers) == [A]
    assert B not in members.cuts
    assert (members.slot_of(B), members.slot_of(C)) == (1, 2)


def test_a_round_has_no_plan_before_the_first_view_nor_after_its_commit() -> None:
    assert read(*JOINED).open_plan(0) is None
    members = read(*JOINED, view(1, A, B), commit(1))
    assert members.plan(0, 1) is None
    plan = members.open_plan(0)
    assert plan is not None
    assert plan.stamp == Stamp(1, members.lineage, 1, 0, 0, 2, 0)
    assert members.open_plan(1) is None, "there is no such fragment"


def test_an_attempt_changes_roster_and_owners_but_not_the_borders() -> None:
    attempt = e.Attempt(1, 0, 0, 1, 1, (A,), (A, A, A), "without b")
    plan = read(*JOINED, view(1, A, B), attempt).open_plan(0)
    assert plan is not None
    assert (plan.stamp.attempt, plan.roster, plan.parts.owners) == (1, (A,), (A, A, A))
    assert plan.parts.borders == BORDERS
    assert (plan.owned_by(A), plan.owned_by(B)) == ([0, 1, 2], [])


def test_an_attempt_is_of_one_round_and_one_view() -> None:
    attempt = e.Attempt(1, 0, 0, 1, 1, (A, B), (A, A, A), "slow")
    members = read(*JOINED, view(1, A, B), attempt, commit(1, attempt=1))
    plan = members.open_plan(0)
    assert plan is not None
    assert (plan.stamp.attempt, plan.roster) == (0, (A, B))
    assert members.attempts == {}
    taken_over = read(*JOINED, view(1, A, B), attempt, view(2, B)).open_plan(0)
    assert taken_over is not None
    assert (taken_over.stamp.view, taken_over.stamp.attempt, taken_over.roster) == (2, 0, (B,))


def test_an_open_round_keeps_its_view_when_the_next_one_begins_later() -> None:
    members = read(*JOINED, view(1, A, B), view(2, A, first_round=2))
    first, second = members.plan(0, 1), members.plan(0, 2)
    assert first is not None
    assert second is not None
    assert (first.stamp.view, first.roster) == (1, (A, B))
    assert (second.stamp.view, second.roster) == (2, (A,))


def test_views_that_no_open_round_needs_are_forgotten() -> None:
    views = [view(n, A, B, first_round=2) for n in range(2, 9)]
    members = read(*JOINED, view(1, A, B), *views)
    assert [each.view for each in members.views] == [1, 8]
    members = read(*JOINED, view(1, A, B), *views, commit(1), view(9, A, first_round=2))
    assert [each.view for each in members.views] == [9]


def test_the_last_commits_stay_and_progress_is_counted() -> None:
    rounds = range(1, KEEP_COMMITS + 4)
    members = read(*JOINED, view(1, A, B), *(commit(n, steps=n) for n in rounds))
    assert [each.round for each in members.commits[0]] == list(rounds)[-KEEP_COMMITS:]
    assert members.commit(0, 1) is None
    assert members.commit(0, rounds[-1]) is not None
    assert members.committed(0) == rounds[-1]
    assert members.inner_step == sum(rounds)
    assert members.tokens == 2 * 100 * len(rounds)


def test_inner_steps_are_those_of_the_longest_contribution() -> None:
    terms = (contributor(A), replace(contributor(B), steps=25))
    members = read(*JOINED, view(1, A, B), replace(commit(1), contributors=terms))
    assert members.inner_step == 25


def test_a_restored_run_goes_on_from_its_cut_with_the_same_seats() -> None:
    seat = PeerInfo(B, "b", 1, "b:1", 4)
    restore = e.Restore(9, (Version(0, 7, START),), 70, 700, (seat,), (), salt=3)
    members = read(BEGUN[0], restore, BEGUN[1], view(1, A, first_round=8))
    plan = members.open_plan(0)
    assert plan is not None
    assert plan.stamp.round == 8
    assert (members.committed(0), members.inner_step, members.tokens) == (7, 70, 700)
    assert (members.slot_of(B), members.slot_of(C)) == (4, 5)


# Lineages -----------------------------------------------------------------------------------


def restore(round_: int, *, salt: int = 1) -> e.Restore:
    return e.Restore(1, (Version(0, round_, state_digest(round_)),), 10, 100, (), (), salt)


def test_only_run_and_restore_open_a_lineage_and_the_parent_is_hashed_in() -> None:
    first = read(*BEGUN).lineage
    assert read(*JOINED, view(1, A, B)).lineage == first
    second = read(*BEGUN, restore(0)).lineage
    assert second not in (0, first)
    other = read(replace(BEGUN[0], run=2), BEGUN[1])
    assert other.lineage != first
    branch = read(replace(BEGUN[0], run=2), BEGUN[1], restore(0)).lineage
    assert branch != second, "the same entry after another parent is another lineage"
    assert read(*BEGUN, restore(0, salt=2)).lineage != second
    assert read(*BEGUN, restore(0), restore(0)).lineage not in (first, second)


def test_the_term_of_the_entry_that_opens_a_lineage_is_part_of_it() -> None:
    """Two leaders may write the same Restore: only one of them is committed."""
    ours, theirs = read(*BEGUN), read(*BEGUN)
    for members, term in ((ours, 2), (theirs, 3)):
        members.apply(e.LogEntry(3, term, restore(0)))
    assert ours.lineage != theirs.lineage


def test_a_restore_voids_what_came_after_its_cut_and_nobody_goes() -> None:
    rounds = (commit(1), commit(2), commit(3))
    members = read(*JOINED, view(1, A, B), *rounds, restore(1), view(1, A, B, first_round=2))
    plan = members.open_plan(0)
    assert plan is not None
    assert (plan.stamp.view, plan.stamp.round, plan.stamp.lineage) == (1, 2, members.lineage)
    assert (members.committed(0), members.inner_step, members.tokens) == (1, 10, 100)
    assert (list(members.members), members.cuts, members.commits) == ([A, B], {}, {})
    assert members.restored_index == 9


def test_who_is_back_from_its_own_checkpoint_counts_only_in_later_views() -> None:
    """Simulated: no cut said that it is another life, and owners had slices of the earlier one."""
    back = e.Member(info(B, 1, incarnation=2))
    members = read(*JOINED, restore(0), view(1, A, B), back, view(2, A, B, first_round=2))
    assert (members.counts(B, 1), members.counts(B, 2)) == (False, True)
    assert members.counts(A, 1)


def test_a_kept_cut_counts_if_the_run_still_stands_on_it() -> None:
    """Not what a Restore took back, though its round may have the same number."""
    before = read(*JOINED, view(1, A, B), commit(1), commit(2))
    members = read(*JOINED, view(1, A, B), commit(1), commit(2), restore(1))
    old, new = before.lineage, members.lineage
    kept = {round_: (Version(0, round_, state_digest(round_)),) for round_ in range(4)}
    assert [n for n in kept if members.is_kept(old, kept[n])] == [0, 1]
    assert members.is_kept(new, kept[2]), "a later round of the new lineage"
    assert not members.is_kept(old ^ 1, kept[0]), "of another run"
    assert not members.is_kept(new, ()), "it names no fragment"
    assert not members.is_kept(new, (Version(1, 0, START),))


# Votes and losses ---------------------------------------------------------------------------


def test_voters_are_members_that_an_entry_made_voters() -> None:
    members = read(*JOINED, e.Voter(B, votes=True, why=""))
    assert members.voters == (A, B)
    assert read(*JOINED, e.Voter(B, votes=True, why=""), e.Lost(B, "x")).voters == (A,)


def test_a_restarted_voter_votes_on_though_it_is_no_member() -> None:
    """Its vote is on its disk; a state it has yet to get."""
    again = e.Cut(info(B, 1, incarnation=2), A, (Version(0, 0, START),))
    members = read(*JOINED, e.Voter(B, votes=True, why=""), again)
    assert members.voters == (A, B)
    assert (list(members.members), list(members.joiners)) == ([A], [B])


def test_losses_are_forgiven_after_some_rounds() -> None:
    lost = (e.Lost(B, "x"), *JOINED[2:])
    assert read(*JOINED, *lost, *lost).losses == {B: 2}
    assert read(*JOINED, e.Left(B, "x")).losses == {}
    rounds = [commit(n) for n in range(1, 2 * FORGIVE_ROUNDS + 1)]
    begun = (*JOINED, *lost, *lost, view(1, A, B))
    assert read(*begun, *rounds[:FORGIVE_ROUNDS]).losses == {B: 1}
    assert read(*begun, *rounds).losses == {}


def test_a_copy_goes_its_own_way() -> None:
    members = read(*JOINED, view(1, A, B))
    head = members.copy()
    assert head == members
    head.apply(e.LogEntry(head.index + 1, 1, commit(1)))
    assert (head.committed(0), members.committed(0)) == (1, 0)
    assert Membership().copy() == Membership()


def test_equal_logs_lead_to_equal_memberships() -> None:
    bodies = (*JOINED, view(1, A, B), commit(1), e.Lost(B, "x"), view(2, A, first_round=2))
    assert read(*bodies) == read(*bodies)
