"""After which payloads of steps the core need not look: those that complete nothing."""

from protocols import events as v
from protocols import quiet
from protocols.ids import PeerId
from tests.protocols.scenes import A, C
from tests.protocols.stepping import Stepper, payload, stepper


def is_quiet(scene: Stepper, step: int, peer: PeerId) -> bool:
    """Once the core has taken this payload."""
    event = v.StepReceived(peer, scene.at(step), peer, payload(peer, step))
    scene.on(event)
    return quiet.is_quiet(event, scene.core, scene.now)


def test_who_waits_for_others_still_has_nothing_to_do() -> None:
    scene = stepper(C)
    scene.makes(1)
    assert is_quiet(scene, 1, C)
    assert not is_quiet(scene, 1, A), "it was the last one"


def test_a_payload_of_a_later_step_may_say_that_we_are_behind() -> None:
    scene = stepper(C)
    scene.makes(1)
    assert not is_quiet(scene, 2, C)
