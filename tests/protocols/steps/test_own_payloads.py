"""Payloads of the own ranks: sent to all of the roster, and again over a new connection."""

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.types.ids import digest_text
from tests.protocols.scenes import A, B, C
from tests.protocols.stepping import payload, stepper

WRONG = digest_text("a flipped bit")


def test_a_payload_goes_straight_to_everybody() -> None:
    scene = stepper(C)
    assert scene.all(c.MakeStep) == [c.MakeStep(1, 1)]
    scene.makes(1)
    stamp = scene.at(1)
    assert scene.all(c.SendStep) == [c.SendStep((A, C), stamp, B, payload(B, 1))]


def test_over_a_new_connection_the_last_two_payloads_come_once_more() -> None:
    scene = stepper(C)
    scene.steps_to(2, A, C)
    scene.makes(3)
    scene.on(v.PeerDisconnected(C, "end of stream"))
    scene.meets(C)
    sent = [(x.peers, x.stamp.round) for x in scene.all(c.SendStep)]
    assert sent == [((C,), 2), ((C,), 3)]
