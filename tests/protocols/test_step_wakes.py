"""Step after step: what wakes the next step alone, and that nothing else could follow."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import marks
from protocols import messages as m
from protocols.refill import FETCH_RETRY_S
from tests.protocols.scenes import A, C, D
from tests.protocols.stepping import COMMIT_EVERY, Stepper, payload, stepper

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
        scene.core.raised = marks.ALL
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
    assert not scene.sent(m.Stopped), "not before the step is made"
    scene.completes(1)
    assert [stopped.stamp.round for _, stopped in scene.sent(m.Stopped)] == [1]
