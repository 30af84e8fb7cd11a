"""The acts in force, after any log, rollback and snapshot."""

from dataclasses import replace

import pytest

from protocols.acts import orders as orders_module
from protocols.messages import log_entries as e
from protocols.state import transitions
from protocols.state.run_state import RunState
from protocols.types.errors import LogError
from protocols.types.ids import PeerId, Version
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
    steered,
    view,
)
from tests.protocols.stepping import stepwise
from tests.protocols.stepping import view as step_view


def commit(round_: int, number: int, *roster: PeerId) -> e.Commit:
    terms = tuple(contributor(peer, round_) for peer in roster)
    state = state_digest(round_ - 1)
    return e.Commit(number, 0, round_, 0, terms, BORDERS, part_digest(round_), state)


TWO = (
    run(),
    e.Member(info(A)),
    e.Cut(info(B, 1), (A,), (Version(0, 0, START),)),
    e.Member(info(B, 1)),
)
BEGUN = (*TWO, view(1, A, B))


def reads(run_state: RunState, *bodies: e.Entry) -> None:
    """Apply entries; acts get the next number, and the present lineage."""
    for body in bodies:
        entry = body
        if isinstance(entry, e.Steered):
            next_ = run_state.orders.number + 1
            entry = replace(entry, number=next_, lineage=run_state.lineage)
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, entry))


def begun(*bodies: e.Entry) -> RunState:
    run_state = members_of(log_of(*BEGUN))
    reads(run_state, *bodies)
    return run_state


def copied(run_state: RunState) -> RunState:
    other = RunState()
    image = encode_image(transitions.image_of(run_state))
    transitions.become(other, decode_image(image))
    assert other == run_state
    return other


PAUSE, CONTINUE = steered("pause"), steered("continue")


def test_the_open_round_ends_and_no_other_one_begins_until_the_run_goes_on() -> None:
    run_state = begun(PAUSE)
    assert run_state.open_plan(0) is not None
    reads(run_state, commit(1, 1, A, B))
    assert run_state.open_plan(0) is None
    with pytest.raises(LogError, match="commits round 2 out of order"):
        reads(run_state, commit(2, 1, A, B))
    late = copied(run_state)
    for one in (run_state, late):
        reads(one, e.Left(B, "x"), view(2, A, first_round=2))
        assert one.open_plan(0) is None, "a roster may change meanwhile"
        reads(one, CONTINUE, commit(2, 2, A))
    assert late == run_state


def test_before_the_first_view_no_round_begins() -> None:
    run_state = members_of(log_of(*TWO))
    reads(run_state, PAUSE, view(1, A, B))
    assert run_state.open_plan(0) is None
    reads(run_state, CONTINUE)
    assert run_state.open_plan(0) is not None


def test_a_pause_outlives_a_rollback() -> None:
    restore = e.Restore(5, (Version(0, 1, state_digest(1)),), 10, 200, (), 0, False, 3)
    run_state = begun(commit(1, 1, A, B), commit(2, 1, A, B), PAUSE, restore)
    reads(run_state, view(1, A, B, first_round=2))
    assert run_state.open_plan(0) is None
    reads(copied(run_state), CONTINUE, commit(2, 1, A, B))


def test_a_stepwise_run_stops_and_opens_no_view() -> None:
    run_state = members_of(log_of(stepwise(), *TWO[1:], step_view(1, A, B, first=1)))
    reads(run_state, PAUSE)
    assert run_state.step_progress.halted == run_state.index
    reads(run_state, e.Close(1, 3, ()))
    with pytest.raises(LogError, match="the run is paused"):
        reads(copied(run_state), step_view(2, A, B, first=4))
    reads(run_state, CONTINUE, step_view(2, A, B, first=4))
    assert not run_state.step_progress.halted


def test_a_removed_incarnation_does_not_come_back_and_the_next_one_does() -> None:
    run_state = begun(steered("kick", B, "1"))
    assert run_state.kick_of(B) is not None
    reads(run_state, e.Lost(B, "removed"))
    late = copied(run_state)
    for one in (run_state, late):
        with pytest.raises(LogError, match="was removed and not started again"):
            reads(one, e.Cut(info(B, 1), (A,), (Version(0, 0, START),)))
        reads(one, e.Cut(info(B, 1, incarnation=2), (A,), (Version(0, 0, START),)))
        assert one.kick_of(B) is None
    assert late == run_state


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (CONTINUE, "is not paused"),
        (steered("kick", C, "1"), "is not in the run"),
        (steered("kick", B, "2"), "started again since"),
        (steered("kick", A, "1"), "only voter"),
        (steered("set", "run.seed", "1"), "cannot change"),
        (steered("set", "run.outer_steps", "1"), "at least 2, the round under way"),
        (steered("set", "run.peers_min", "1"), "rounds have begun"),
        (steered("add operator", "aa" * 32), "no keys|only an operator"),
        (steered("fly"), "no act fly"),
    ],
)
def test_what_cannot_be_done_is_refused(act: e.Steered, words: str) -> None:
    run_state = begun(commit(1, 1, A, B))
    with pytest.raises(LogError, match=words):
        reads(run_state, act)


def test_a_run_gets_longer_or_shorter_and_its_rules_change() -> None:
    run_state = begun(steered("set", "run.outer_steps", "2"), commit(1, 1, A, B))
    late = copied(run_state)
    for one in (run_state, late):
        assert one.run is not None
        assert one.run.outer_steps == 2
        reads(one, commit(2, 1, A, B))
        assert one.is_over
        with pytest.raises(LogError, match="the run is finished"):
            reads(one, steered("set", "run.outer_steps", "9"))


def test_a_finished_run_goes_on_right_after_a_fork_at_its_end() -> None:
    """`lowcomm resume --set run.outer_steps` writes both to a log that no daemon reads."""
    longer = steered("set", "run.outer_steps", "9")
    end = (Version(0, 2, state_digest(2)),)
    settled = begun(steered("set", "run.outer_steps", "2"), commit(1, 1, A, B), commit(2, 1, A, B))
    fork = e.Restore(settled.lineage, end, 2, 20, (A,), 7, lonely=False, salt=1)
    reads(settled, fork, e.Elected(A))
    late = copied(settled)
    for one in (settled, late):
        for other in (PAUSE, steered("set", "run.protocol.quorum", "2")):
            with pytest.raises(LogError, match="the run is finished"):
                reads(one, other)
        reads(one, longer)
        assert not one.is_over
        assert one.run is not None
        assert one.run.outer_steps == 9
    assert settled == late


def test_others_may_have_seen_the_end_that_a_fork_left_long_ago() -> None:
    end = (Version(0, 2, state_digest(2)),)
    settled = begun(steered("set", "run.outer_steps", "2"), commit(1, 1, A, B), commit(2, 1, A, B))
    fork = e.Restore(settled.lineage, end, 2, 20, (A,), 7, lonely=False, salt=1)
    reads(settled, fork, e.Elected(A), e.Elected(A))
    with pytest.raises(LogError, match="the run is finished"):
        reads(settled, steered("set", "run.outer_steps", "9"))


def test_old_acts_are_forgotten_but_not_those_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_module, "STEERED_MAX", 4)
    grace = "run.protocol.round_grace_s"
    run_state = begun(steered("set", "run.protocol.quorum", "2"), PAUSE)
    reads(run_state, *(steered("set", grace, f"{n}.0") for n in range(1, 7)))
    orders = run_state.orders
    assert (orders.number, len(orders.acts)) == (8, 4)
    assert orders.paused is not None
    assert orders.settings == {"run.protocol.quorum": "2", grace: "6.0"}
    assert copied(run_state).orders == orders
