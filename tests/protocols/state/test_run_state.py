"""What a log leads to: members, plans, commits, and how little of the past is kept."""

from dataclasses import replace

from protocols.messages import log_entries as e
from protocols.state import transitions
from protocols.state.checkpoint_progress import progress_at, remaining_at
from protocols.state.run_state import KEEP_COMMITS, RunState
from protocols.state.transitions import FORGIVE_ROUNDS, LOST_ROUNDS
from protocols.types.ids import PeerInfo, Stamp, Version
from protocols.types.limits import TOTAL_MAX
from protocols.types.sample_ranges import Grant, Remaining, SampleRange, Samples
from protocols.wire.codec import decode_image, encode_image
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
JOINED = (*BEGUN, e.Cut(info(B, 1), (A,), (Version(0, 0, START),)), e.Member(info(B, 1)))


def commit(round_: int, *, number: int = 1, steps: int = 10, attempt: int = 0) -> e.Commit:
    terms = tuple(replace(contributor(peer, round_), steps=steps) for peer in (A, B))
    return e.Commit(number, 0, round_, attempt, terms, BORDERS, part_digest(0), "")


def read(*bodies: e.Entry) -> RunState:
    return members_of(log_of(*bodies))


def test_a_run_is_over_when_every_fragment_has_its_last_round() -> None:
    assert not RunState().is_over, "there is none yet"
    last = (Version(0, 9, START), Version(1, 8, START))
    for rounds, over in ((last, False), ((last[0], Version(1, 9, START)), True)):
        restore = e.Restore(1, rounds, 0, 0, (), 0, False, salt=1)
        run_state = members_of(log_of(run(outer_steps=9, fragments=2), e.Member(info(A)), restore))
        assert run_state.is_over == over


def test_a_cut_makes_a_receiver_and_member_makes_a_member() -> None:
    run_state = read(*JOINED[:3])
    assert (list(run_state.members), list(run_state.joiners)) == ([A], [B])
    assert list(run_state.receivers) == [A, B]
    run_state = read(*JOINED)
    assert (list(run_state.members), list(run_state.joiners)) == ([A, B], [])
    assert run_state.cuts[B][0] == 3


def test_a_members_new_cut_leaves_it_a_member() -> None:
    run_state = read(*JOINED, e.Cut(info(B, 1), (A,), (Version(0, 0, START),)))
    assert B in run_state.members
    assert B not in run_state.joiners
    assert run_state.cuts[B][0] == 5


def test_who_is_gone_keeps_its_slot_of_the_data() -> None:
    run_state = read(*JOINED, e.Lost(B, "x"))
    assert list(run_state.receivers) == [A]
    assert B not in run_state.cuts
    assert (run_state.slot_of(B), run_state.slot_of(C)) == (1, 2)


def test_a_round_has_no_plan_before_the_first_view_nor_after_its_commit() -> None:
    assert read(*JOINED).open_plan(0) is None
    run_state = read(*JOINED, view(1, A, B), commit(1))
    assert run_state.plan(0, 1) is None
    plan = run_state.open_plan(0)
    assert plan is not None
    assert plan.stamp == Stamp(1, run_state.lineage, 1, 0, 2, 0)
    assert run_state.open_plan(1) is None, "there is no such fragment"


def test_an_attempt_changes_roster_and_owners_but_not_the_borders() -> None:
    attempt = e.Attempt(1, 0, 1, 1, (A,), (A, A, A), "without b")
    plan = read(*JOINED, view(1, A, B), attempt).open_plan(0)
    assert plan is not None
    assert (plan.stamp.attempt, plan.roster, plan.parts.owners) == (1, (A,), (A, A, A))
    assert plan.parts.borders == BORDERS
    assert (plan.owned_by(A), plan.owned_by(B)) == ([0, 1, 2], [])


def test_an_attempt_is_of_one_round_and_one_view() -> None:
    attempt = e.Attempt(1, 0, 1, 1, (A, B), (A, A, A), "slow")
    run_state = read(*JOINED, view(1, A, B), attempt, commit(1, attempt=1))
    plan = run_state.open_plan(0)
    assert plan is not None
    assert (plan.stamp.attempt, plan.roster) == (0, (A, B))
    assert run_state.attempts == {}
    taken_over = read(*JOINED, view(1, A, B), attempt, view(2, B)).open_plan(0)
    assert taken_over is not None
    assert (taken_over.stamp.view, taken_over.stamp.attempt, taken_over.roster) == (2, 0, (B,))


def test_an_open_round_keeps_its_view_when_the_next_one_begins_later() -> None:
    run_state = read(*JOINED, view(1, A, B), view(2, A, first_round=2))
    first, second = run_state.plan(0, 1), run_state.plan(0, 2)
    assert first is not None
    assert second is not None
    assert (first.stamp.view, first.roster) == (1, (A, B))
    assert (second.stamp.view, second.roster) == (2, (A,))


def test_views_that_no_open_round_needs_are_forgotten() -> None:
    views = [view(n, A, B, first_round=2) for n in range(2, 9)]
    run_state = read(*JOINED, view(1, A, B), *views)
    assert [each.view for each in run_state.views] == [1, 8]
    run_state = read(*JOINED, view(1, A, B), *views, commit(1), view(9, A, first_round=2))
    assert [each.view for each in run_state.views] == [9]


def test_the_last_commits_stay_and_progress_is_counted() -> None:
    rounds = range(1, KEEP_COMMITS + 4)
    run_state = read(*JOINED, view(1, A, B), *(commit(n, steps=n) for n in rounds))
    assert [each.round for each in run_state.commits[0]] == list(rounds)[-KEEP_COMMITS:]
    assert run_state.commit(0, 1) is None
    assert run_state.commit(0, rounds[-1]) is not None
    assert run_state.committed(0) == rounds[-1]
    assert run_state.inner_step == sum(rounds)
    assert run_state.tokens == 2 * 100 * len(rounds)


def test_inner_steps_are_those_of_the_longest_contribution() -> None:
    terms = (contributor(A), replace(contributor(B), steps=25))
    run_state = read(*JOINED, view(1, A, B), replace(commit(1), contributors=terms))
    assert run_state.inner_step == 25


def test_a_restored_run_goes_on_from_its_cut() -> None:
    restore = e.Restore(9, (Version(0, 7, START),), 70, 700, (), 0, False, salt=3)
    run_state = read(*BEGUN, restore, view(1, A, first_round=8))
    plan = run_state.open_plan(0)
    assert plan is not None
    assert plan.stamp.round == 8
    assert (run_state.committed(0), run_state.inner_step, run_state.tokens) == (7, 70, 700)


def test_sums_stay_where_they_can_be_written_whatever_members_say() -> None:
    restore = e.Restore(9, (Version(0, 7, START),), TOTAL_MAX, TOTAL_MAX, (), 0, False, salt=3)
    run_state = read(*JOINED, restore, view(1, A, B, first_round=8), commit(8))
    assert (run_state.inner_step, run_state.tokens) == (TOTAL_MAX, TOTAL_MAX)
    image = transitions.image_of(run_state)
    assert decode_image(encode_image(image)) == image


def test_a_fork_names_its_voter_and_whom_it_may_meet_again() -> None:
    vote = e.Voter(B, votes=True, why="there is a place")
    fork = e.Restore(1, (Version(0, 0, START),), 0, 0, (B,), 77, True, salt=3)
    run_state = read(*JOINED, vote, fork)
    assert (run_state.voters, run_state.forks, list(run_state.rivals)) == ((B,), (77,), [A])
    found = transitions.copy(run_state)
    assert (found.forks, found.rivals) == (run_state.forks, run_state.rivals)
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, e.BranchDropped(A, (), 5)))
    assert run_state.rivals == {}


def test_a_witness_reads_the_log_and_receives_nothing() -> None:
    seat = PeerInfo(C, "c", 1, "c:1", 0)
    run_state = read(*BEGUN, e.Witness(seat), e.Voter(C, votes=True, why="there is a place"))
    assert (C in run_state.readers, C in run_state.receivers, run_state.voters) == (
        True,
        False,
        (A, C),
    )
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, e.Lost(C, "end of stream")))
    assert (C in run_state.readers, run_state.voters) == (False, (A,))


def test_progress_at_an_earlier_round_is_without_the_later_ones() -> None:
    run_state = read(*JOINED, view(1, A, B), commit(1), commit(2))
    steps, tokens = progress_at(run_state, 1)
    assert 0 < tokens < run_state.tokens
    assert 0 < steps < run_state.inner_step
    assert progress_at(run_state, 2) == (run_state.inner_step, run_state.tokens)


# Lineages -----------------------------------------------------------------------------------


def restore(round_: int, *, salt: int = 1) -> e.Restore:
    return e.Restore(1, (Version(0, round_, state_digest(round_)),), 10, 100, (), 0, False, salt)


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
    for run_state, term in ((ours, 2), (theirs, 3)):
        transitions.apply(run_state, e.LogEntry(3, term, restore(0)))
    assert ours.lineage != theirs.lineage


def test_a_restore_voids_what_came_after_its_cut_and_nobody_goes() -> None:
    rounds = (commit(1), commit(2), commit(3))
    run_state = read(*JOINED, view(1, A, B), *rounds, restore(1), view(1, A, B, first_round=2))
    plan = run_state.open_plan(0)
    assert plan is not None
    assert (plan.stamp.view, plan.stamp.round, plan.stamp.lineage) == (1, 2, run_state.lineage)
    assert (run_state.committed(0), run_state.inner_step, run_state.tokens) == (1, 10, 100)
    assert (list(run_state.members), run_state.cuts, run_state.commits) == ([A, B], {}, {})
    assert run_state.restored_index == 9


def test_who_is_back_from_its_own_checkpoint_counts_only_in_later_views() -> None:
    """Simulated: no cut said that it is another life, and owners had slices of the earlier one."""
    back = e.Member(info(B, 1, incarnation=2))
    run_state = read(*JOINED, restore(0), view(1, A, B), back, view(2, A, B, first_round=2))
    assert (run_state.counts(B, 1), run_state.counts(B, 2)) == (False, True)
    assert run_state.counts(A, 1)


def test_a_kept_cut_counts_if_the_run_still_stands_on_it() -> None:
    """Not what a Restore took back, though its round may have the same number."""
    before = read(*JOINED, view(1, A, B), commit(1), commit(2))
    run_state = read(*JOINED, view(1, A, B), commit(1), commit(2), restore(1))
    old, new = before.lineage, run_state.lineage
    kept = {round_: (Version(0, round_, state_digest(round_)),) for round_ in range(4)}
    assert [n for n in kept if run_state.is_kept(old, kept[n])] == [0, 1]
    assert run_state.is_kept(new, kept[2]), "a later round of the new lineage"
    assert not run_state.is_kept(old ^ 1, kept[0]), "of another run"
    assert not run_state.is_kept(new, ()), "it names no fragment"
    assert not run_state.is_kept(new, (Version(1, 0, START),))


# Votes and losses ---------------------------------------------------------------------------


def test_voters_are_members_that_an_entry_made_voters() -> None:
    run_state = read(*JOINED, e.Voter(B, votes=True, why=""))
    assert run_state.voters == (A, B)
    assert read(*JOINED, e.Voter(B, votes=True, why=""), e.Lost(B, "x")).voters == (A,)


def test_a_restarted_voter_votes_on_though_it_is_no_member() -> None:
    """Its vote is on its disk; a state it has yet to get."""
    again = e.Cut(info(B, 1, incarnation=2), (A,), (Version(0, 0, START),))
    run_state = read(*JOINED, e.Voter(B, votes=True, why=""), again)
    assert run_state.voters == (A, B)
    assert (list(run_state.members), list(run_state.joiners)) == ([A], [B])


def test_losses_are_forgiven_after_some_rounds() -> None:
    lost = (e.Lost(B, "x"), *JOINED[2:])
    assert read(*JOINED, *lost, *lost).losses == {B: 2}
    assert read(*JOINED, e.Left(B, "x")).losses == {}
    rounds = [commit(n) for n in range(1, 2 * FORGIVE_ROUNDS + 1)]
    begun = (*JOINED, *lost, *lost, view(1, A, B))
    assert read(*begun, *rounds[:FORGIVE_ROUNDS]).losses == {B: 1}
    assert read(*begun, *rounds).losses == {}


def test_a_copy_goes_its_own_way() -> None:
    run_state = read(*JOINED, view(1, A, B))
    head = transitions.copy(run_state)
    assert head == run_state
    transitions.apply(head, e.LogEntry(head.index + 1, 1, commit(1)))
    assert (head.committed(0), run_state.committed(0)) == (1, 0)
    assert transitions.copy(RunState()) == RunState()


def test_equal_logs_lead_to_equal_memberships() -> None:
    bodies = (*JOINED, view(1, A, B), commit(1), e.Lost(B, "x"), view(2, A, first_round=2))
    assert read(*bodies) == read(*bodies)


# Samples --------------------------------------------------------------------------------------


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


LEASE = e.Lease((Grant(A, ranges((0, 100))), Grant(B, ranges((100, 200)))))
LEASED = (*JOINED, LEASE, view(1, A, B))


def covering(round_: int, **changes: int) -> e.Commit:
    """Both of them saw five more samples."""
    start, stop = 5 * round_ - 5, 5 * round_
    samples = (ranges((start, stop)), ranges((100 + start, 100 + stop)))
    return replace(commit(round_, **changes), samples=samples)


def test_a_commit_of_the_anchor_takes_what_it_covers() -> None:
    ledger = read(*LEASED, covering(1)).ledger
    assert (ledger.held_by(A, 1), ledger.held_by(B, 1)) == (ranges((5, 100)), ranges((105, 200)))
    assert ledger.consumed == 10


def test_while_a_lost_peer_may_be_counted_and_may_come_back_its_samples_wait() -> None:
    lost = (*LEASED, e.Lost(B, "silent"))
    assert read(*lost).ledger.free == ()
    # The dead still counts, since its bytes were there.
    counted = (*lost, covering(1), view(2, A, first_round=2))
    assert read(*counted).ledger.held_by(B, 1) == ranges((105, 200))
    rounds = [
        replace(commit(number), contributors=(contributor(A, number),), view=2)
        for number in range(2, LOST_ROUNDS + 1)
    ]
    assert read(*counted, *rounds[:-1]).ledger.free == ()
    assert read(*counted, *rounds).ledger.free == ranges((105, 200))


def test_who_left_gives_its_samples_back_once_the_open_round_goes_on_without_it() -> None:
    left = (*LEASED, e.Left(B, "asked to"))
    assert read(*left).ledger.free == ()
    attempt = e.Attempt(1, 0, 1, 1, (A,), (A, A, A), "without b")
    assert read(*left, attempt).ledger.free == ranges((100, 200))
    assert read(*left, view(2, A)).ledger.free == ranges((100, 200))
    assert read(*left, view(2, A, first_round=2)).ledger.free == ()


def test_a_new_life_of_a_member_does_not_hold_what_the_old_one_did() -> None:
    back = e.Cut(info(B, 1, incarnation=2), (A,), (Version(0, 0, START),))
    run_state = read(*LEASED, back, e.Member(back.info))
    assert (run_state.ledger.held_by(B, 2), run_state.ledger.free) == ((), ())
    again = view(2, A, B, first_round=1)  # It means the new life.
    assert read(*LEASED, back, e.Member(back.info), again).ledger.free == ranges((100, 200))


def test_the_ledger_of_a_past_round() -> None:
    run_state = read(*LEASED, *(covering(number) for number in range(1, KEEP_COMMITS + 2)))
    newest = KEEP_COMMITS + 1
    assert remaining_at(run_state, newest) == run_state.ledger.remaining
    assert remaining_at(run_state, newest - 2) == Remaining(
        200, ranges((5 * newest - 10, 100), (100 + 5 * newest - 10, 200))
    )
    assert remaining_at(run_state, 1) is not None
    assert remaining_at(run_state, 0) is None, "no peer remembers"


def test_a_restore_goes_back_to_the_ledger_of_the_cut() -> None:
    cut = remaining_at(read(*LEASED, covering(1)), 1)
    assert cut is not None
    restore = e.Restore(1, (Version(0, 1, START),), 10, 200, (), 0, False, 1, cut)
    ledger = read(*LEASED, covering(1), covering(2), restore).ledger
    assert (ledger.free, ledger.consumed) == (ranges((5, 100), (105, 200)), 10)
    assert ledger.held_by(A, 1) == ()
