"""What the log means to a stepwise run."""

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state.checkpoint_progress import progress_at, remaining_at
from protocols.state.step_entries import batch_of, drawn_at
from protocols.types.ids import PeerId, PeerInfo, Version, digest_text
from protocols.types.sample_ranges import Remaining
from tests.protocols.scenes import START, A, B, C, D
from tests.protocols.stepping import Stepper, payload, state, stepper, view

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


# Batches --------------------------------------------------------------------------------------


def batches(scene: Stepper, step: int) -> list[int]:
    """Of the newest view's roster, in its order."""
    newest = scene.core.run_state.views[-1]
    return [batch_of(scene.core.run_state, newest, step, peer) for peer in newest.roster]


def test_each_batch_goes_to_one_peer_and_none_is_left_out() -> None:
    scene = stepper(C)
    assert [batches(scene, step) for step in (1, 2, 3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [drawn_at(scene.core.run_state, step) for step in range(4)] == [0, 3, 6, 9]


def test_what_a_view_did_not_come_to_goes_to_the_next_one() -> None:
    scene = stepper(C, D)
    scene.steps_to(2, A, C, D)
    scene.makes(3)
    scene.reads(e.Lost(A, "gone"), e.Close(1, 2, ()))
    scene.reads(view(2, B, C, D, first=3))
    assert batches(scene, 3) == [8, 9, 10]
    assert drawn_at(scene.core.run_state, 2) == 8
    assert scene.all(c.MakeStep) == [c.MakeStep(3, 8)], "its payload was made from batch 9"
    scene.on(v.StepMade(3, 9, payload(B, 3)))
    assert not scene.all(c.SendStep)
    scene.makes(3)
    assert [x.stamp.view for x in scene.all(c.SendStep)] == [2]


def test_who_comes_changes_nobody_elses_batch() -> None:
    scene = stepper(C)
    scene.steps_to(2, A, C)
    early = PeerId("0.first")
    scene.reads(e.Cut(PeerInfo(early, "0", 1, "0:1", 9), (A,), (Version(0, 0, START),)))
    scene.reads(e.Member(PeerInfo(early, "0", 1, "0:1", 9)), e.Halt(1, (), "0 comes"))
    scene.reads(e.Close(1, 2, ()), view(2, early, A, B, C, first=3))
    assert batches(scene, 3) == [9, 6, 7, 8]


def test_forgotten_views_still_count() -> None:
    scene = stepper(C)
    run_state = scene.core.run_state
    scene.steps_to(2, A, C)
    scene.reads(e.Lost(C, "gone"), e.Close(1, 2, ()), view(2, A, B, first=3))
    scene.steps_to(8, A, number=2)
    scene.reads(e.StepCommit(2, 8, state(8)))
    assert [view.view for view in run_state.views] == [2]
    assert [drawn_at(run_state, step) for step in (2, 3, 8, 9)] == [6, 8, 18, 20]
    assert run_state.tokens == 18


def test_steps_that_were_taken_back_are_made_of_the_same_batches_by_another_view() -> None:
    """Views 2 and 3 closed before the step that they began with: nobody held their payloads."""
    scene = stepper(C)
    run_state = scene.core.run_state
    scene.steps_to(2, A, C)
    scene.reads(e.Halt(1, (), "a look"), e.Close(1, 2, ()), view(2, A, B, C, first=3))
    scene.reads(e.Halt(2, (), "a look"), e.Close(2, 4, ()), view(3, A, B, first=5))
    scene.reads(e.Lost(A, "gone"), e.Lost(B, "gone"), e.Close(3, 2, ()), view(4, C, first=3))
    assert [view.view for view in run_state.views] == [1, 4], "and they are of no use"
    assert [drawn_at(run_state, step) for step in (2, 3, 8)] == [6, 7, 12]
    scene.reads(e.StepCommit(4, 8, state(8)))
    assert [view.view for view in run_state.views] == [4]
    assert [drawn_at(run_state, step) for step in (2, 3, 8)] == [6, 7, 12]


def test_a_restored_run_goes_on_with_the_batches_after_its_cut() -> None:
    scene = stepper(C)
    run_state = scene.core.run_state
    scene.steps_to(8, A, C)
    scene.reads(e.StepCommit(1, 8, state(8)))
    remaining = Remaining(24)
    assert remaining_at(run_state, 8) == remaining
    assert progress_at(run_state, 8) == (8, 24)
    versions = (Version(0, 8, state(8)),)
    scene.reads(
        e.Restore(run_state.lineage, versions, 8, 24, (), 0, False, 1, remaining),
        view(1, A, B, first=9),
    )
    assert batches(scene, 9) == [24, 25]
