"""Whose state is not the one that the others have: it goes back to its base, or asks for one."""

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.ids import digest_text
from tests.protocols.scenes import START, A, B
from tests.protocols.stepping import Stepper, applied, state, stepper

WRONG = digest_text("a flipped bit")


def test_who_differs_from_what_is_committed_makes_its_state_again() -> None:
    scene = stepper()
    scene.steps_to(3, A)
    scene.makes(4)
    scene.gets(4, A)
    scene.completes(4, digest=WRONG)
    scene.reads(e.Halt(1, (B,), "without b"), e.StepCommit(1, 4, state(4)))
    assert scene.notes("diverged") == ["our state at step 4 is not the one that is committed"]
    assert scene.all(c.LoadBase) == [c.LoadBase(0)]
    scene.on(v.BaseLoaded(0, START))
    assert applied(scene) == [1]


def strayed() -> Stepper:
    """Twice B made another state of step 4 than the committed one, from its copy of step 0."""
    scene = stepper()
    scene.steps_to(3, A)
    scene.makes(4)
    scene.gets(4, A)
    scene.completes(4, digest=WRONG)
    scene.reads(e.Halt(1, (B,), "without b"), e.StepCommit(1, 4, state(4)))
    assert scene.told(m.Have) == [m.Have(scene.core.members.lineage, 0, 0, "")]
    scene.on(v.BaseLoaded(0, START))
    for step in range(1, 4):
        scene.completes(step)
    assert not scene.told(m.Join)
    return scene


def test_who_differs_twice_asks_for_a_state_and_gives_none() -> None:
    """Seeds 52087 and 52014: what was committed could not be reached from anybody's copy, and
    all made their states again, for ever."""
    scene = strayed()
    scene.completes(4, digest=WRONG)
    assert scene.told(m.Join)
    assert not scene.all(c.LoadBase)
    index = scene.gets_cut()
    scene.on(v.StateReceived(A, index, 0, 0, START))
    assert scene.all(c.LoadBase) == [c.LoadBase(0)]  # The same copy: it has one try.
    assert m.Have(scene.core.members.lineage, 0, 0, START) not in scene.told(m.Have)


def test_who_gets_there_after_all_may_give_its_copy_again() -> None:
    scene = strayed()
    scene.completes(4)
    assert scene.told(m.Have) == [m.Have(scene.core.members.lineage, 0, 0, START)]


def test_who_is_left_out_of_the_same_view_again_makes_its_state_again() -> None:
    """Seed 17031410: all were corrupt once more before the view had ended, and said so once."""
    scene = stepper()
    scene.steps_to(2, A)
    scene.reads(e.Halt(1, (A, B), "without a, b"), e.Close(1, 2, ()))
    for _ in range(2):
        assert scene.all(c.LoadBase) == [c.LoadBase(0)]
        scene.on(v.BaseLoaded(0, START))
        scene.completes(1)
        scene.completes(2)
        assert scene.told(m.Stepped) == [m.Stepped(scene.at(2), state(2))]
        scene.reads(e.Halt(1, (A, B), "without a, b"))
