"""What wakes which parts of a core: what changes a part raises its mark, and nothing else does."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer import wakeups
from protocols.steps.payload_fetch import FETCH_RETRY_S
from tests.protocols.led import Led, leading
from tests.protocols.scenes import A, B, C, D, Follower, contributor, follower
from tests.protocols.stepping import COMMIT_EVERY, Stepper, payload, stepper

PARTS = [getattr(wakeups, name) for name in vars(wakeups) if name.isupper()]


def woken(scene: Follower | Led, event: v.Event) -> int:
    """The marks that an event raises, before any part has run."""
    found: list[int] = []
    look = scene.core.look

    def noted(now: float) -> None:
        found.append(scene.core.raised)
        look(now)

    scene.core.look = noted
    scene.core.handle(event, scene.now)
    scene.core.look = look
    return found[0]


def test_each_part_has_a_mark_of_its_own() -> None:
    single = [mark for mark in PARTS if isinstance(mark, int) and mark.bit_count() == 1]
    assert set(single) == {1 << number for number in range(16)}
    assert sum(set(single)) == wakeups.ALL


def test_a_heartbeat_wakes_nothing_and_an_entry_only_elections() -> None:
    scene = follower(B, C)
    assert woken(scene, v.MessageReceived(C, m.Heartbeat())) == 0
    index, term = scene.log.last_index, scene.log.last_term
    beat = m.Append(1, 1, index, term, (), index)
    assert woken(scene, v.MessageReceived(A, beat)) == wakeups.RAFT
    assert woken(scene, v.Persisted(1)) == wakeups.RAFT


@pytest.mark.parametrize(
    "event",
    [
        v.PeerConnected(C, 1, "c:1", ""),
        v.PeerDisconnected(C, "end of stream"),
        v.TrainersReady(),
        v.TrainersLost("crash"),
        v.LeaveRequested("asked to"),
    ],
)
def test_what_all_parts_read_wakes_all(event: v.Event) -> None:
    assert woken(follower(B, C), event) == wakeups.ALL


def test_time_wakes_the_parts_whose_deadline_has_come() -> None:
    scene = follower(B, C)
    assert woken(scene, v.DeadlineReached()) == 0, "nothing is due"
    scene.now = scene.core.deadline
    assert woken(scene, v.DeadlineReached()) != 0
    assert scene.core.deadline > scene.now


def test_what_peers_report_wakes_the_office_and_nothing_where_there_is_none() -> None:
    scene = leading(B)
    scene.now += 0.01
    assert woken(scene, v.MessageReceived(B, m.ReadyToTrain())) == wakeups.LED_TERM
    assert (
        woken(scene, v.MessageReceived(B, m.UnreachedMembers(())))
        == wakeups.LED_TERM | wakeups.CONNECTIVITY
    )
    assert woken(follower(B, C), v.MessageReceived(C, m.ReadyToTrain())) == 0


def test_a_slice_wakes_its_round_when_the_sum_is_complete() -> None:
    scene = follower(B, C)
    stamp = scene.stamp(1)
    plan = scene.core.run_state.open_plan(0)
    assert plan is not None
    (part,) = plan.owned_by(B)[:1]
    others = [peer for peer in plan.roster if peer != B]
    for peer in others:
        event = v.SliceReceived(peer, stamp, part, contributor(peer))
        assert woken(scene, event) == 0, "our own is not there yet"
    made = v.ContributionReady(0, 10, 1)
    assert woken(scene, made) == wakeups.OUR_ROUND


def is_woken(scene: Stepper, step: int, peer: str) -> bool:
    who = A if peer == "a" else C
    event = v.StepReceived(who, scene.at(step), who, payload(who, step))
    return woken(scene, event) == wakeups.NEXT_STEP


def test_a_payload_wakes_the_next_step_when_it_was_the_last_one() -> None:
    scene = stepper(C)
    scene.makes(1)
    assert not is_woken(scene, 1, "c")
    assert is_woken(scene, 1, "a")


def test_a_payload_of_a_later_step_may_say_that_we_are_behind() -> None:
    scene = stepper(C)
    scene.makes(1)
    assert is_woken(scene, 2, "c")


# Step after step -------------------------------------------------------------------------------

Do = Callable[[Stepper], list[c.Command]]


def from_a(step: int) -> Do:
    return lambda scene: scene.gets(step, A)


def from_c(step: int) -> Do:
    return lambda scene: scene.gets(step, C)


def made(step: int) -> Do:
    return lambda scene: scene.makes(step)


def completed(step: int) -> Do:
    return lambda scene: scene.completes(step)


FIRST = (made(1), from_a(1), from_c(1), completed(1))
ORDERS: tuple[tuple[Do, ...], ...] = (
    (*FIRST, made(2), from_a(2), from_c(2), completed(2), made(3)),
    (from_a(1), from_c(1), made(1), completed(1), from_c(2), from_a(2), made(2), completed(2)),
    # One step ahead: nobody can be further.
    (from_a(1), made(1), from_c(1), from_a(2), completed(1), from_c(2), made(2), completed(2)),
    # Twice the same, and one that is late.
    (from_a(1), from_a(1), made(1), from_c(1), completed(1), from_c(1), made(2), from_a(2)),
    # Ranks that are not asked, or not for that.
    (made(2), made(1), made(1), completed(2), from_a(1), from_c(1), completed(1), completed(1)),
    tuple(
        do
        for step in range(1, COMMIT_EVERY + 2)
        for do in (made(step), from_a(step), from_c(step), completed(step))
    ),
)


def said_by(scene: Stepper, do: Do, *, everything: bool) -> list[c.Command]:
    if everything:
        scene.core.raised = wakeups.ALL
    return do(scene)


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_comes_of_an_event_as_of_a_look_at_everything(order: tuple[Do, ...]) -> None:
    woken, looking = stepper(C), stepper(C)
    for do in order:
        assert said_by(woken, do, everything=False) == said_by(looking, do, everything=True)
        assert woken.core.deadline <= looking.core.deadline


def test_ranks_go_on_by_themselves_except_where_all_report() -> None:
    scene = stepper()
    went_on: list[bool] = []
    for step in range(1, COMMIT_EVERY + 1):
        scene.makes(step)
        scene.gets(step, A)
        (apply,) = scene.all(c.ApplyStep)
        assert isinstance(apply, c.ApplyStep)
        went_on.append(apply.following is not None)
        scene.completes(step)
    assert went_on == [True] * (COMMIT_EVERY - 1) + [False]


def test_a_payload_that_stays_away_is_asked_for_all_the_same() -> None:
    scene = stepper(C)
    scene.steps_to(1, A, C)
    scene.makes(2)
    scene.gets(2, A)
    scene.gets(3, A)  # So it had completed step 2: C's payload of it was lost.
    assert scene.core.deadline <= scene.now + FETCH_RETRY_S
    asked: list[m.Control] = []
    until = scene.now + 2 * FETCH_RETRY_S
    while not asked and scene.core.deadline <= until:
        scene.on(v.DeadlineReached(), after_s=max(0.0, scene.core.deadline - scene.now))
        asked += [message for _, message in scene.sent(m.FetchSteps)]
    assert asked


def test_a_strangers_payload_is_dropped_and_wakes_nothing() -> None:
    scene = stepper(C)
    scene.makes(1)
    stamp = scene.at(1)
    for event in (
        v.StepReceived(D, stamp, D, payload(D, 1)),
        v.StepReceived(A, stamp, C, payload(C, 1)),  # Handed on: only after it was asked for.
        v.StepReceived(A, replace(stamp, lineage=99), A, payload(A, 1)),
    ):
        assert scene.on(event) == [c.Discard(event)]


def test_nothing_is_made_once_the_view_stands_still() -> None:
    scene = stepper(C)
    scene.makes(1)
    scene.reads(e.Halt(1, (), "a test"))
    scene.gets(1, A, C)
    assert not scene.all(c.ApplyStep)


def test_a_step_that_was_being_applied_when_all_had_to_stop_is_reported() -> None:
    """The log went on while the ranks applied it: what follows is no longer the next step alone."""
    scene = stepper(C)
    scene.makes(1)
    scene.gets(1, A, C)
    scene.reads(e.Halt(1, (), "a test"))
    assert not scene.sent(m.StepsHalted), "not before the step is made"
    scene.completes(1)
    assert [stopped.stamp.round for _, stopped in scene.sent(m.StepsHalted)] == [1]
