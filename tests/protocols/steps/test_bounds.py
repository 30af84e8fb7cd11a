"""How far a stepwise run is, going by what others send: none of them is believed alone."""

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.steps.step_machine import StepMachine
from tests.protocols.scenes import A, B, C
from tests.protocols.stepping import STEPS, Stepper, stepper, view

FAR = STEPS - 1


def steps_of(scene: Stepper) -> StepMachine:
    assert scene.core.part.steps is not None
    assert scene.core.part.steps.bounds.limit >= FAR
    return scene.core.part.steps


def target(scene: Stepper) -> int:
    steps = steps_of(scene)
    return steps.bounds.target(steps.payloads)


def test_nobody_of_our_roster_is_far_ahead_whatever_it_sends() -> None:
    """Each of us said that it cannot take part, and nobody was to blame."""
    scene = stepper(C)
    scene.steps_to(2, A, C)
    scene.makes(3)
    scene.gets(FAR, C)
    assert not scene.told(m.NotReadyToTrain)
    assert target(scene) == 3, "all but we may have completed that"
    scene.gets(3, A, C)
    assert target(scene) == 3
    scene.completes(3)
    assert target(scene) == 3, "it lacks our next payload"


def test_what_it_sent_before_we_read_of_the_view_says_nothing_either() -> None:
    scene = stepper(C)
    scene.steps_to(2, A, C)
    scene.gets(FAR, C, number=2)
    scene.reads(e.Halt(1, (), "?"), e.Close(1, 2, ()), view(2, A, B, C, first=3))
    assert not scene.told(m.NotReadyToTrain)
    assert target(scene) == 2


def test_a_payload_of_ones_own_step_shows_that_it_completed_the_one_before() -> None:
    scene = stepper(C)
    scene.makes(1)
    scene.gets(1, A)
    assert target(scene) == 0
    scene.gets(2, A)
    assert target(scene) == 1


def test_who_only_follows_believes_two() -> None:
    scene = Stepper(B)
    scene.joins(C)
    scene.reads(view(1, A, C, first=1))
    scene.gets(FAR, C)
    assert not scene.told(m.NotReadyToTrain)
    assert target(scene) == 0
    scene.gets(FAR - 1, A)
    assert target(scene) == FAR - 2
    assert scene.told(m.NotReadyToTrain)


def test_who_follows_one_alone_believes_it() -> None:
    scene = Stepper(B)
    scene.joins()
    scene.reads(view(1, A, first=1))
    scene.gets(FAR, A)
    assert target(scene) == FAR - 1
