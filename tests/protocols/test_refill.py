"""Payloads of steps that somebody lacks: asked for, given, and given up."""

from protocols import commands as c
from protocols import entries as e
from protocols import messages as m
from tests.protocols.scenes import START, A, B, C, D
from tests.protocols.stepping import Stepper, payload, state, view


def stepper() -> Stepper:
    """B, in view 1 with A and C."""
    scene = Stepper(B)
    scene.joins(C)
    scene.reads(view(1, A, B, C, first=1))
    return scene


def test_payloads_are_given_to_who_lacks_them() -> None:
    scene = stepper()
    scene.steps_to(2, A, C)
    scene.hears(C, m.FetchSteps(scene.core.members.lineage, 1, 9, (A,)))
    sent = [(*x.peers, x.stamp.round, x.whose, x.digest) for x in scene.all(c.SendStep)]
    assert sent == [(C, step, A, payload(A, step)) for step in (1, 2)]
    assert not scene.hears(C, m.FetchSteps(7, 1, 9, ()))  # Of another lineage.
    scene.hears(D, m.FetchSteps(scene.core.members.lineage, 1, 9, ()))
    assert not scene.all(c.SendStep)


def test_who_follows_far_behind_asks_one_after_the_other_and_then_for_a_new_copy() -> None:
    scene = Stepper(B)
    scene.joins(C)
    scene.reads(view(1, A, C, first=1), e.StepCommit(1, 4, state(4)))
    asked = [(peer, message.first, message.last) for peer, message in scene.sent(m.FetchSteps)]
    assert len(asked) == 1
    assert asked[0][1:] == (1, 4)
    scene.hears(A, m.Heartbeat())
    for _ in range(8):
        scene.waits(1.0)
        asked += [(p, x.first, x.last) for p, x in scene.sent(m.FetchSteps)]
        if scene.sent(m.Join):
            break
        scene.beat()
        scene.hears(C, m.Heartbeat())
    assert {peer for peer, _, _ in asked} == {A, C}
    (join,) = scene.told(m.Join)
    assert isinstance(join, m.Join)
    assert join.why == "payloads of missed steps are gone"


def test_who_lacks_what_is_committed_does_not_have_that_state() -> None:
    scene = Stepper(B)
    scene.joins(C)
    scene.reads(view(1, A, C, first=1), e.StepCommit(1, 4, state(4)))
    assert scene.told(m.Have) == [m.Have(scene.core.members.lineage, 0, 0, "")]
    for step in range(1, 5):
        scene.gets(step, A, C, sender=A)
    assert scene.told(m.Have) == [m.Have(scene.core.members.lineage, 0, 0, START)]
