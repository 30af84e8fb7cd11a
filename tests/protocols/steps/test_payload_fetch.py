"""Payloads of steps that somebody lacks: asked for, given, and given up."""

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId
from tests.protocols.scenes import START, A, B, C, D
from tests.protocols.stepping import Stepper, applied, payload, state, view


def stepper() -> Stepper:
    """B, in view 1 with A and C."""
    scene = Stepper(B)
    scene.joins(C)
    scene.reads(view(1, A, B, C, first=1))
    return scene


def test_payloads_are_given_to_who_lacks_them() -> None:
    scene = stepper()
    scene.steps_to(2, A, C)
    scene.hears(C, m.FetchSteps(scene.core.run_state.lineage, 1, 9, (A,)))
    sent = [(*x.peers, x.stamp.round, x.whose, x.digest) for x in scene.all(c.SendStep)]
    assert sent == [(C, step, A, payload(A, step)) for step in (1, 2)]
    assert not scene.hears(C, m.FetchSteps(7, 1, 9, ()))  # Of another lineage.
    scene.hears(D, m.FetchSteps(scene.core.run_state.lineage, 1, 9, ()))
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


def test_what_somebody_passes_on_unasked_is_dropped() -> None:
    """The first payload of a peer stays: what C calls A's, or ours, is summed for it."""
    scene = stepper()
    scene.steps_to(2, A, C)
    for step, whose in ((3, A), (3, B), (4, B)):
        lie = v.StepReceived(C, scene.at(step), whose, payload(D, step))
        assert scene.on(lie) == [c.Discard(lie)]
    scene.makes(3)
    scene.gets(3, A, C)
    terms = tuple((peer, payload(peer, 3)) for peer in (A, B, C))
    assert scene.one(c.ApplyStep).terms == terms


def asking() -> tuple[Stepper, PeerId]:
    """B asks somebody for C's payload of step 3, which A has: it has sent its own of step 4."""
    scene = stepper()
    scene.steps_to(2, A, C)
    scene.makes(3)
    scene.gets(3, A)
    scene.gets(4, A)
    for _ in range(3):
        scene.waits(1.0)
        for holder, fetch in scene.sent(m.FetchSteps):
            assert (fetch.first, fetch.last, fetch.peers) == (3, 3, (C,))
            return scene, holder
    raise AssertionError("nobody was asked")


def test_only_who_was_asked_gives_only_what_it_was_asked_for() -> None:
    scene, holder = asking()
    other = A if holder == C else C
    for sender, whose, step in ((other, holder, 3), (holder, other, 4), (holder, D, 3)):
        wrong = v.StepReceived(sender, scene.at(step), whose, payload(whose, step))
        assert scene.on(wrong) == [c.Discard(wrong)]
    scene.gets(3, C, sender=holder)
    assert applied(scene) == [3]


def test_what_was_asked_for_may_come_after_others_made_it_needless() -> None:
    """Asked for once, it is no lie; and it is forgotten with its step."""
    scene, holder = asking()
    scene.gets(3, C)
    scene.completes(3)
    steps = scene.core.part.steps
    assert steps is not None
    assert steps.payload_fetch.has_asked(holder, 3, C)
    steps.payload_fetch.prune(2)
    assert steps.payload_fetch.has_asked(holder, 3, C)
    steps.payload_fetch.prune(3)
    assert not steps.payload_fetch.has_asked(holder, 3, C)


def test_who_lacks_what_is_committed_does_not_have_that_state() -> None:
    scene = Stepper(B)
    scene.joins(C)
    scene.reads(view(1, A, C, first=1), e.StepCommit(1, 4, state(4)))
    assert scene.told(m.Have) == [m.Have(scene.core.run_state.lineage, 0, 0, "")]
    ((holder, _),) = scene.sent(m.FetchSteps)
    for step in range(1, 5):
        scene.gets(step, A, C, sender=holder)
    assert scene.told(m.Have) == [m.Have(scene.core.run_state.lineage, 0, 0, START)]
