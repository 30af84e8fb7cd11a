"""The kept copy of a stepwise run's state: it follows the commits, or leads astray."""

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import Version, digest_text
from tests.protocols.scenes import START, A, B, C, D, info
from tests.protocols.stepping import Stepper, applied, state, stepper

WRONG = digest_text("a flipped bit")


def strayed() -> Stepper:
    """Twice B made another state of step 4 than the committed one, from its copy of step 0."""
    scene = stepper()
    scene.steps_to(3, A)
    scene.makes(4)
    scene.gets(4, A)
    scene.completes(4, digest=WRONG)
    scene.reads(e.Halt(1, (B,), "without b"), e.StepCommit(1, 4, state(4)))
    assert scene.told(m.Have) == [m.Have(scene.core.run_state.lineage, 0, 0, "")]
    scene.on(v.BaseLoaded(0, START))
    for step in range(1, 4):
        scene.completes(step)
    assert not scene.told(m.Join)
    return scene


def test_a_copy_becomes_the_base_once_its_step_is_committed() -> None:
    scene = stepper()
    scene.steps_to(7, A)
    scene.makes(8)
    scene.gets(8, A)
    assert [x.keep for x in scene.all(c.ApplyStep)] == [True]
    scene.completes(8)
    scene.reads(e.StepCommit(1, 4, state(4)))
    assert not scene.all(c.ReleaseSteps)
    scene.reads(e.StepCommit(1, 8, state(8)))
    assert scene.all(c.ReleaseSteps) == [c.ReleaseSteps(8)]
    assert scene.told(m.Have) == [m.Have(scene.core.run_state.lineage, 0, 8, state(8))]


def test_a_donor_that_goes_on_at_once_copies_the_base_before() -> None:
    scene = stepper(C)
    scene.steps_to(8, A, C)
    scene.reads(e.Cut(info(D, 7), (B,), (Version(0, 0, START),)), e.StepCommit(1, 8, state(8)))
    copied, released = scene.one(c.CopyState), scene.one(c.ReleaseSteps)
    assert scene.said.index(copied) < scene.said.index(released)


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


def test_who_differs_twice_asks_for_a_state_and_gives_none() -> None:
    """Seeds 52087 and 52014: what was committed could not be reached from anybody's copy, and
    all made their states again, for ever."""
    scene = strayed()
    scene.completes(4, digest=WRONG)
    assert scene.told(m.Join)
    assert not scene.all(c.LoadBase)
    index = scene.gets_cut()
    scene.on(v.StateReceived(index, 0, 0, START))
    assert scene.all(c.LoadBase) == [c.LoadBase(0)]  # The same copy: it has one try.
    assert m.Have(scene.core.run_state.lineage, 0, 0, START) not in scene.told(m.Have)


def test_who_gets_there_after_all_may_give_its_copy_again() -> None:
    scene = strayed()
    scene.completes(4)
    assert scene.told(m.Have) == [m.Have(scene.core.run_state.lineage, 0, 0, START)]
