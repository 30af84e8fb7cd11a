"""Each way in which an entry of a stepwise run can make no sense, and what the log says of it."""

from dataclasses import replace

import pytest

from protocols.messages import log_entries as e
from protocols.messages.step_progress import StepProgress
from protocols.state import transitions
from protocols.state.run_state import RunState
from protocols.state.step_entries import step_view
from protocols.types.errors import LogError
from protocols.types.ids import Provider, Version
from protocols.wire.codec import decode_image, encode_image
from tests.protocols.scenes import START, A, B, C, D, info, log_of, members_of, run
from tests.protocols.scenes import view as round_view
from tests.protocols.stepping import state, stepwise, view

CUTS = [
    e.Cut(info(peer, slot), (A,), (Version(0, 0, START),)) for slot, peer in enumerate((B, C), 1)
]
BEGUN = (
    *(stepwise(), e.Member(info(A))),
    *(CUTS[0], e.Member(info(B, 1)), CUTS[1], e.Member(info(C, 2))),
)
RUNNING = (*BEGUN, view(1, A, B, first=1))
HALTED = (*RUNNING, e.Halt(1, (), "c can take part"))
CLOSED = (*HALTED, e.Close(1, 6, (Provider(6, A, B),)))


def after(*bodies: e.Entry) -> RunState:
    return members_of(log_of(*bodies))


@pytest.mark.parametrize(
    ("before", "body", "says"),
    [
        ((), replace(stepwise(), snapshot_every_steps=0), "between its commits"),
        ((), replace(stepwise(), snapshot_every_steps=6), "between its commits"),
        ((), replace(stepwise(), fragment_elements=(1, 1)), "several fragments"),
        ((), replace(run(), snapshot_every_steps=4), "never commits"),
        (BEGUN, view(1, A, B, first=2), "0 is the last one"),
        (BEGUN, round_view(1, A, B), "0 is the last one"),
        (BEGUN, view(2, A, B, first=1), "View 2 after 0"),
        (BEGUN, e.StepCommit(1, 4, state(4)), "without steps"),
        (BEGUN, e.Halt(1, (), "why"), "without steps"),
        ((run(), e.Member(info(A))), e.StepCommit(1, 4, state(4)), "without steps"),
        (RUNNING, view(2, A, first=5), "None is the last one"),
        (RUNNING, e.StepCommit(2, 4, state(4)), "the newest one is 1"),
        (RUNNING, e.StepCommit(1, 5, state(5)), "which is no step to commit"),
        (RUNNING, e.StepCommit(1, 4, ""), "which is no step to commit"),
        (RUNNING, e.StepCommit(1, 28, state(28)), "which is no step to commit"),
        ((*RUNNING, e.StepCommit(1, 4, state(4))), e.StepCommit(1, 4, state(4)), "out of order"),
        (RUNNING, e.Halt(1, (D,), "why"), "not there"),
        (RUNNING, e.Close(1, 6, ()), "a view that runs"),
        (RUNNING, e.Attempt(1, 0, 1, 1, (A,), (A,), "why"), "not open"),
        (HALTED, e.Halt(1, (), "why"), "a stopped view"),
        (HALTED, e.Close(1, 6, (Provider(6, A, D),)), "not there"),
        ((*RUNNING, e.StepCommit(1, 8, state(8)), HALTED[-1]), e.Close(1, 7, ()), "are agreed"),
        (HALTED, e.Close(1, 25, ()), "which no peer can have reached"),
        (CLOSED, e.Close(1, 6, ()), "has ended"),
        (CLOSED, e.StepCommit(1, 8, state(8)), "out of order"),
        (CLOSED, view(2, A, B, first=8), "6 is the last one"),
        (RUNNING, e.Cut(info(D, 3), (A,), (Version(0, 4, state(4)),)), "cuts at"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    before: tuple[e.Entry, ...], body: e.Entry, says: str
) -> None:
    run_state = after(*before)
    image = transitions.image_of(run_state) if before else None
    with pytest.raises(LogError, match=says):
        transitions.apply(run_state, e.LogEntry(len(before) + 1, 1, body))
    assert image is None or transitions.image_of(run_state) == image


def test_a_commit_moves_the_base_only_at_every_other_one() -> None:
    run_state = after(*RUNNING, e.StepCommit(1, 4, state(4)))
    assert (run_state.committed(0), run_state.cut_round(0), run_state.inner_step) == (4, 0, 4)
    assert run_state.agreed_digest == ""
    run_state = after(*RUNNING, e.StepCommit(1, 4, state(4)), e.StepCommit(1, 8, state(8)))
    assert (run_state.committed(0), run_state.cut_round(0)) == (8, 8)
    assert run_state.agreed_digest == state(8)


def test_a_view_ends_where_its_close_says() -> None:
    run_state = after(*CLOSED)
    assert step_view(run_state, 6) == RUNNING[-1]
    assert step_view(run_state, 7) is None
    run_state = after(*CLOSED, view(2, A, B, C, first=7))
    assert step_view(run_state, 6) == RUNNING[-1]
    assert step_view(run_state, 7) == view(2, A, B, C, first=7)
    assert run_state.step_progress == StepProgress()


def test_views_are_forgotten_with_the_steps_that_nobody_replays() -> None:
    run_state = after(*CLOSED, view(2, A, B, first=7), e.StepCommit(2, 8, state(8)))
    assert [known.view for known in run_state.views] == [2]
    assert step_view(run_state, 6) is None


@pytest.mark.parametrize(
    "gone",
    [
        e.Lost(B, "silent"),
        e.Left(B, "asked to leave"),
        e.Halt(1, (B,), "without b"),
        e.Cut(info(B, 1, incarnation=2), (A,), (Version(0, 0, START),)),
    ],
)
def test_everybody_stops_when_one_of_the_roster_counts_no_more(gone: e.Entry) -> None:
    run_state = after(*RUNNING, gone)
    assert run_state.step_progress.halted == len(RUNNING) + 1
    assert not run_state.counts(B, 1)
    again = after(*RUNNING, gone, e.Lost(C, "silent"))
    assert again.step_progress.halted == len(RUNNING) + 1  # They stand still already.


def test_a_member_that_only_follows_stops_nobody() -> None:
    assert after(*RUNNING, e.Lost(C, "silent")).step_progress.halted == 0


def test_a_close_is_void_without_its_provider() -> None:
    run_state = after(*CLOSED, e.Lost(B, "silent"))
    assert (run_state.step_progress.close, run_state.step_progress.halted) == (
        None,
        len(CLOSED) + 1,
    )
    run_state = after(*CLOSED, e.Lost(C, "silent"))
    assert run_state.step_progress.close is not None


def test_a_close_is_void_without_anybody_of_its_roster() -> None:
    """Who only followed may not get there; then even an earlier view may end sooner."""
    opened = (*CLOSED[:-1], e.Close(1, 6, ()), view(2, A, first=7), e.Halt(2, (), "why"))
    run_state = after(*opened, e.Close(2, 9, ()), e.Lost(A, "silent"))
    assert run_state.step_progress.close is None
    run_state = after(*opened, e.Lost(A, "silent"), e.Close(2, 3, ()), view(3, B, first=4))
    assert step_view(run_state, 3) == RUNNING[-1]
    assert step_view(run_state, 9) == view(3, B, first=4)


def test_a_close_of_nobodys_view_is_void_when_anybody_goes() -> None:
    """Seed 41092: of two that followed a roster that is gone, the one that got there went."""
    nobody = (*RUNNING, e.Lost(B, "silent"), e.Lost(A, "silent"), e.Close(1, 6, ()))
    assert after(*nobody).step_progress.close is not None
    for gone in (e.Lost(C, "silent"), e.Left(C, "asked to leave")):
        assert after(*nobody, gone).step_progress.close is None


def test_who_is_back_from_its_own_checkpoint_is_not_who_the_view_meant() -> None:
    restore = e.Restore(0, (Version(0, 4, state(4)),), 4, 4, (), 0, False, 1)
    began = (*RUNNING, restore, view(1, A, B, first=5))
    run_state = after(*began)
    assert (run_state.committed(0), run_state.cut_round(0)) == (4, 4)
    run_state = after(*began, e.Member(info(B, 1, incarnation=2)))
    assert not run_state.counts(B, 1)
    assert run_state.step_progress.halted == len(began) + 1


@pytest.mark.parametrize("bodies", [RUNNING, HALTED, CLOSED, (*CLOSED, e.Lost(B, "silent"))])
def test_a_snapshot_keeps_all_of_it(bodies: tuple[e.Entry, ...]) -> None:
    run_state = after(*bodies, e.Lost(C, "silent"))
    read = RunState()
    transitions.become(read, decode_image(encode_image(transitions.image_of(run_state))))
    assert read == run_state
