"""What the log means to a stepwise run."""

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.ids import digest_text
from tests.protocols.scenes import START, A, B
from tests.protocols.stepping import state, stepper

WRONG = digest_text("a flipped bit")


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
