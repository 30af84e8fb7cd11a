"""What a leader decides in a stepwise run, report by report."""

from collections.abc import Sequence

import pytest

from protocols.leader.step_views import StepViews
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.log import Log
from protocols.state import transitions
from protocols.state.run_state import RunState
from protocols.state.step_entries import furthest_step
from protocols.types.ids import PeerId, Provider, Stamp, StepPayloads, Version, digest_text
from tests.protocols.scenes import START, A, B, C, D, info
from tests.protocols.stepping import state, stepwise, view

TIMEOUT_S = 40.0
WRONG = digest_text("a flipped bit")


class Chair:
    """A leader's decisions on top of a log that grows by them."""

    def __init__(self, *roster: PeerId, first: int = 1) -> None:
        self.log, self.run_state = Log(), RunState()
        self.now = 0.0
        self.able: set[PeerId] = set(roster)
        self.write(stepwise(), e.Member(info(A)))
        for slot, peer in enumerate((B, C, D), start=1):
            self.write(e.Cut(info(peer, slot), (A,), (Version(0, 0, START),)))
            self.write(e.Member(info(peer, slot)))
        self.step_views = StepViews(A, self.run_state)
        if roster:
            self.write(view(1, *roster, first=first))

    def write(self, *bodies: e.Entry) -> None:
        for body in bodies:
            transitions.apply(self.run_state, self.log.append(body, term=1))

    def stamp(self, step: int, *, number: int = 1) -> Stamp:
        return Stamp(1, self.run_state.lineage, number, 0, step, 0)

    def stepped(self, step: int, *peers: PeerId, digest: str = "", number: int = 1) -> list[str]:
        report = m.Stepped(self.stamp(step, number=number), digest or state(step))
        return [self.step_views.stepped(peer, report) for peer in peers]

    def stopped(
        self, peer: PeerId, step: int, *held: StepPayloads, halted: int = 0, number: int = 1
    ) -> None:
        stamp = self.stamp(step, number=number)
        index = halted or self.run_state.step_progress.halted
        self.step_views.stands(peer, m.StepsHalted(stamp, index, held))

    def waits(self, peer: PeerId, step: int, *absent: PeerId) -> None:
        self.step_views.waits(peer, m.WaitsForPeers(self.stamp(step), absent))

    def decides(self, *, after_s: float = 0.0) -> e.Entry | None:
        """The next decision, which is written down."""
        self.now += after_s
        body = self.step_views.next_commit()
        body = body or self.step_views.next_change(self.now, self.able, timeout_s=TIMEOUT_S)
        if body is not None:
            self.write(body)
        return body

    def loses(self, peer: PeerId) -> None:
        self.step_views.forget(peer)
        self.able.discard(peer)
        self.write(e.Lost(peer, "silent"))


def chair(*, loses: PeerId | None = None) -> Chair:
    """A, B and C make steps; D watches."""
    made = Chair(A, B, C)
    if loses is not None:
        made.loses(loses)
        assert made.decides() is None
    return made


def close(last: int, *providers: Provider, number: int = 1) -> e.Close:
    return e.Close(number, last, providers)


# The first view -------------------------------------------------------------------------------


def test_the_run_begins_with_whoever_is_able_once_they_are_enough() -> None:
    made = Chair()
    assert made.run_state.run is not None
    assert made.decides() is None
    made.able = {A, D}
    assert made.decides() == view(1, A, D, first=1)
    assert made.decides() is None


# Commits --------------------------------------------------------------------------------------


def test_a_step_is_committed_when_all_of_the_roster_are_at_one_state() -> None:
    made = chair()
    made.stepped(4, A, B)
    assert made.decides() is None
    made.stepped(4, D)  # Not in the roster.
    assert made.decides() is None
    made.stepped(4, C)
    assert made.decides() == e.StepCommit(1, 4, state(4))


def test_the_furthest_one_is_and_there_is_one_entry_for_all_before_it() -> None:
    made = chair()
    for step in (4, 8):
        made.stepped(step, A, B, C)
    made.stepped(12, A, B)
    assert made.decides() == e.StepCommit(1, 8, state(8))
    assert made.decides() is None


def test_only_at_the_steps_of_the_runs_rhythm() -> None:
    made = chair()
    made.stepped(5, A, B, C)
    assert made.decides() is None


def test_a_step_of_an_earlier_view_is_committed_by_the_roster_of_the_new_one() -> None:
    made = chair(loses=C)
    for peer in (A, B):
        made.stopped(peer, 5)
    assert made.decides() == close(5)
    made.stepped(5, A, B)
    assert made.decides() == view(2, A, B, first=6)
    made.stepped(4, A)
    assert made.decides() is None
    made.stepped(4, B)
    assert made.decides() == e.StepCommit(2, 4, state(4))


def test_a_state_of_steps_that_were_taken_back_counts_no_more() -> None:
    made = chair(loses=C)
    made.stepped(4, A, B)
    made.write(e.Close(1, 3, ()))
    made.able = {A, B}
    made.stepped(3, A, B)
    assert made.decides() == view(2, A, B, first=4)
    assert made.decides() is None
    made.stepped(4, A, B, number=2, digest=WRONG)  # Made again, with another payload.
    assert made.decides() == e.StepCommit(2, 4, WRONG)


def test_whose_state_differs_is_named_and_the_others_go_on() -> None:
    made = chair()
    assert made.stepped(4, A, B) == ["", ""]
    assert made.stepped(4, C, digest=WRONG) == ["differs at step 4"]
    assert made.decides() == e.Halt(1, (C,), "without c: state differs")
    assert made.decides() == e.StepCommit(1, 4, state(4))


def test_without_a_majority_everybody_makes_its_state_again() -> None:
    made = Chair(A, B)
    made.stepped(4, A)
    made.stepped(4, B, digest=WRONG)
    assert made.decides() == e.Halt(1, (A, B), "without a, b: state differs")


# Stopping -------------------------------------------------------------------------------------


def test_who_comes_waits_for_the_next_commit() -> None:
    made = chair()
    made.able.add(D)
    assert made.decides() is None
    made.stepped(4, A, B, C)
    assert made.decides() == e.StepCommit(1, 4, state(4))
    assert made.decides() == e.Halt(1, (), "d can take part")


def test_a_member_without_ranks_stops_the_others_at_once() -> None:
    made = chair()
    made.able.discard(B)
    assert made.decides() == e.Halt(1, (), "b cannot take part")


def test_for_whom_others_wait_too_long_is_left_out() -> None:
    made = chair()
    made.waits(A, 6, B, C)
    made.waits(B, 5, C)  # It lacks an earlier step, so A waits for B because of C.
    assert made.decides() == e.Halt(1, (C,), "without c: others waited too long")


def test_the_leader_hears_everybody_so_who_waits_for_it_alone_is_left_out() -> None:
    made = chair()
    made.waits(C, 5, A)
    assert made.decides() == e.Halt(1, (C,), "without c: others waited too long")


def test_after_the_last_step_nothing_changes_any_more() -> None:
    made = chair()
    made.stepped(24, A, B, C)
    assert made.decides() == e.StepCommit(1, 24, state(24))
    made.able = {A, D}
    assert made.decides() is None


# Closing --------------------------------------------------------------------------------------


def test_a_view_ends_when_every_survivor_said_where_it_stands() -> None:
    made = chair(loses=C)
    made.stopped(A, 5)
    assert made.decides() is None
    made.stopped(B, 5)
    assert made.decides() == close(5)


def test_never_below_what_somebody_completed() -> None:
    made = chair(loses=C)
    made.stopped(A, 6)
    made.stopped(B, 5, StepPayloads(6, (A, B)))
    assert made.decides() == close(6, Provider(6, C, A))


def test_never_below_what_is_committed() -> None:
    made = chair()
    made.stepped(4, A, B, C)
    made.decides()
    for peer in (A, B, C):
        made.loses(peer)
    made.stopped(D, 2)
    assert made.decides() == close(4)


def test_as_far_as_their_payloads_reach_together() -> None:
    made = chair(loses=C)
    made.stopped(A, 5, StepPayloads(6, (A, B)))
    made.stopped(B, 5, StepPayloads(6, (B, C)))
    assert made.decides() == close(6, Provider(6, A, A), Provider(6, C, B))


def test_not_a_step_that_nobody_can_complete() -> None:
    made = chair(loses=C)
    made.stopped(A, 5, StepPayloads(6, (A, B)))
    made.stopped(B, 5, StepPayloads(6, (A, B)))
    assert made.decides() == close(5)


def test_who_only_followed_may_provide_and_is_not_waited_for() -> None:
    made = chair(loses=C)
    made.stopped(D, 6)
    made.stopped(A, 5, StepPayloads(6, (A,)))
    made.stopped(B, 5, StepPayloads(6, (A, B)))
    assert made.decides() == close(6, Provider(6, B, B), Provider(6, C, D))


def test_a_report_before_the_last_stop_is_void() -> None:
    made = chair(loses=C)
    made.stopped(A, 5)
    made.stopped(B, 5, halted=made.run_state.step_progress.halted - 1)
    assert made.decides() is None


def test_who_does_not_answer_is_left_out_in_so_many_words() -> None:
    made = chair(loses=C)
    made.stopped(A, 5)
    assert made.decides(after_s=TIMEOUT_S - 1) is None
    without = e.Halt(1, (B,), "without b: no report of its last step")
    assert made.decides(after_s=1.0) == without
    assert made.decides() == close(5)


def test_a_lost_provider_means_fresh_reports_and_another_end() -> None:
    made = Chair(A, B, C, D)
    made.loses(D)
    made.stopped(A, 5, StepPayloads(6, (A,)))
    made.stopped(B, 5, StepPayloads(6, (B,)))
    made.stopped(C, 6)
    assert made.decides() is not None
    assert made.run_state.step_progress.close is not None
    made.loses(C)
    assert made.run_state.step_progress.close is None
    assert made.decides() is None  # What they said before counts no more.
    made.stopped(A, 5, StepPayloads(6, (A,)))
    made.stopped(B, 5, StepPayloads(6, (B,)))
    assert made.decides() == close(5)


def test_of_nobody_left_of_the_roster_the_last_follower_decides() -> None:
    made = Chair(A)
    made.loses(A)
    made.step_views.me = B
    made.stopped(B, 3)
    assert made.decides() is None
    made.stopped(C, 2)
    made.stopped(D, 2)
    assert made.decides() == close(3, Provider(3, A, B))


# The next view --------------------------------------------------------------------------------


def closed(last: int = 5) -> Chair:
    made = chair(loses=C)
    for peer in (A, B):
        made.stopped(peer, last)
    assert made.decides() == close(last)
    return made


def test_the_next_view_begins_when_all_have_completed_the_last_one() -> None:
    made = closed()
    made.stepped(5, A)
    assert made.decides() is None
    made.stepped(5, B)
    assert made.decides() == view(2, A, B, first=6)


def test_who_comes_is_waited_for_too_but_not_for_ever() -> None:
    made = closed()
    made.able.add(D)
    made.stepped(5, A, B)
    assert made.decides() is None
    assert made.decides(after_s=TIMEOUT_S) == view(2, A, B, first=6)


@pytest.mark.parametrize("gone", [(), (B,)])
def test_whose_ranks_are_gone_is_not(gone: Sequence[PeerId]) -> None:
    made = closed()
    made.able -= set(gone)
    made.stepped(5, A, *({B} - set(gone)))
    assert made.decides() == view(2, *({A, B} - set(gone)), first=6)


def test_who_arrives_at_another_state_goes_back_first() -> None:
    made = closed()
    made.able.add(D)
    made.stepped(5, A, B)
    made.stepped(5, D, digest=WRONG)
    assert made.decides() == e.Halt(1, (D,), "without d: state differs")
    made.able.discard(D)
    assert made.decides() == view(2, A, B, first=6)


def test_who_cannot_take_part_knows_too_what_is_right() -> None:
    """Seed 52108: all others' ranks were away, and a roster of one that was wrong went on."""
    made = closed()
    made.able = {A}
    made.stepped(5, A, digest=WRONG)
    made.stepped(5, B, D)
    assert made.decides() == e.Halt(1, (A,), "without a: state differs")


def test_a_state_of_another_lineage_completes_no_step_and_moves_nobody() -> None:
    """Views and steps have the same numbers on both sides of a Restore."""
    made = chair()
    made.stepped(4, A, B)
    made.waits(A, 5, C)
    made.waits(B, 5, C)
    before = made.stamp(4)
    made.write(e.Restore(made.run_state.lineage, (Version(0, 0, START),), 0, 0, (), 0, False, 1))
    assert made.decides() == view(1, A, B, C, first=1)
    assert made.decides() is None, "C was late in the lineage before"
    made.stepped(4, C)
    assert made.decides() is None, "A and B have not said that they made step 4 again"
    for peer in (A, B):
        made.step_views.stepped(peer, m.Stepped(before, state(4)))
        made.step_views.waits(peer, m.WaitsForPeers(before, (C,)))
        made.step_views.stands(peer, m.StepsHalted(before, 0, ()))
    assert made.decides() is None
    made.stepped(4, A, B)
    assert made.decides() == e.StepCommit(1, 4, state(4))


def test_a_decision_of_its_own_has_a_time() -> None:
    made = chair()
    assert made.step_views.deadline(TIMEOUT_S) == float("inf")
    made.now = 7.0
    made.loses(C)
    made.decides()
    assert made.step_views.deadline(TIMEOUT_S) == 7.0 + TIMEOUT_S


# What nobody can have done ----------------------------------------------------------------------


def test_a_step_that_nobody_can_have_made_ends_no_view() -> None:
    chair = Chair(A, B, C)
    furthest = furthest_step(chair.run_state)
    chair.write(e.Halt(1, (), "D can take part"))
    for peer, step in ((A, 3), (B, furthest + 1), (C, 3)):
        chair.stopped(peer, step)
    assert B not in chair.step_views.said.stopped
    chair.stopped(B, furthest)
    assert B in chair.step_views.said.stopped


@pytest.mark.parametrize(("number", "beyond"), [(2, 0), (1, 1)])
def test_a_state_that_nobody_can_have_is_not_remembered(number: int, beyond: int) -> None:
    chair = Chair(A, B, C)
    chair.stepped(furthest_step(chair.run_state) + beyond, B, number=number)
    assert not chair.step_views.said.states
