"""A peer of a stepwise run: it makes steps with a fixed roster, stops with it, and can go back."""

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.wait_reason import describe
from protocols.steps.step_machine import StepMachine
from protocols.types.ids import PeerId, Provider, StepPayloads, digest_text
from tests.protocols.scenes import RULES, START, A, B, C, D, Scene, caught_up, info
from tests.protocols.stepping import Stepper, applied, payload, state, stepper, stepwise, view

WRONG = digest_text("a flipped bit")


def steps_of(scene: Stepper) -> StepMachine:
    assert scene.core.part.steps is not None
    return scene.core.part.steps


# Steps ----------------------------------------------------------------------------------------


def test_the_founder_begins_with_its_own_copy() -> None:
    scene = Scene(A, join=False)
    scene.on(v.RunAccepted(RULES))
    scene.on(v.Bootstrap(stepwise(), (START,)))
    assert scene.all(c.ReleaseSteps) == [c.ReleaseSteps(0)]
    scene.on(v.TrainersReady())
    assert scene.all(c.LoadBase) == [c.LoadBase(0)]
    scene.on(v.BaseLoaded(0, START))
    assert scene.all(c.MakeStep) == [c.MakeStep(1, 0)]  # Alone in view 1.


def test_a_joiner_gets_a_copy_and_gives_it_to_its_ranks_when_they_are_there() -> None:
    scene = Stepper(B)
    scene.meets(A)
    scene.reads(stepwise(), e.Member(info(A)), e.Elected(A))
    scene.on(v.RunAccepted(RULES))
    index = scene.gets_cut()
    scene.on(v.StateReceived(index, 0, 0, START))
    assert scene.all(c.AdoptState) == [c.AdoptState(index, 0, 0)]
    assert scene.all(c.ReleaseSteps) == [c.ReleaseSteps(0)]
    assert scene.told(m.CaughtUp) == [caught_up(B, index)]
    assert not scene.all(c.LoadBase)
    scene.reads(e.Member(info(B, 1)))
    scene.on(v.TrainersReady())
    assert scene.all(c.LoadBase) == [c.LoadBase(0)]
    scene.on(v.BaseLoaded(0, START))
    assert scene.told(m.ReadyToTrain) == [m.ReadyToTrain()]


def test_a_copy_that_is_damaged_is_asked_for_anew() -> None:
    scene = Stepper(B)
    scene.joins()
    scene.on(v.TrainersLost("crash"))
    scene.on(v.TrainersReady())
    scene.on(v.BaseLoaded(0, WRONG))
    (asked,) = scene.told(m.Join)
    assert isinstance(asked, m.Join)
    assert asked.why == "our copy of the state is damaged"


def test_a_step_is_applied_when_all_of_the_roster_is_here_and_in_its_order() -> None:
    scene = stepper(C)
    scene.makes(1)
    scene.gets(1, C)
    assert applied(scene) == []
    scene.gets(1, A)
    terms = tuple((peer, payload(peer, 1)) for peer in (A, B, C))
    assert scene.all(c.ApplyStep) == [
        c.ApplyStep(scene.at(1), terms, keep=False, following=c.MakeStep(2, 4))
    ]
    scene.completes(1)
    assert scene.all(c.MakeStep) == [c.MakeStep(2, 4)]
    assert not scene.sent(m.Stepped)  # Nobody needs to know before the next commit.


def test_a_payload_that_comes_early_waits_and_a_second_one_is_dropped() -> None:
    scene = stepper(C)
    assert not scene.gets(1, A) or not scene.all(c.Discard)
    other = v.StepReceived(A, scene.at(1), A, WRONG)
    assert scene.on(other) == [c.Discard(other)]
    scene.gets(2, A)
    assert not scene.all(c.Discard)


def test_payloads_of_strangers_of_other_steps_and_of_other_lineages_are_dropped() -> None:
    scene = stepper(C)
    strange = [
        v.StepReceived(D, scene.at(1), D, payload(D, 1)),
        v.StepReceived(A, scene.at(1), D, payload(D, 1)),
        v.StepReceived(A, scene.at(0), A, payload(A, 0)),
        v.StepReceived(A, scene.at(1000), A, payload(A, 1000)),
        v.StepReceived(A, scene.at(1, number=99), A, payload(A, 1)),
        v.StepReceived(A, scene.stamp(1, number=0), A, payload(A, 1)),
    ]
    for event in strange:
        assert scene.on(event) == [c.Discard(event)]


def test_steps_stop_when_commits_stay_away() -> None:
    """What is tentative is kept by everybody, so there must be an end."""
    scene = stepper()
    scene.steps_to(16, A)
    assert not scene.all(c.MakeStep)
    scene.reads(e.StepCommit(1, 4, state(4)))
    assert scene.all(c.MakeStep) == [c.MakeStep(17, 33)]


# Commits --------------------------------------------------------------------------------------


def test_a_state_is_reported_at_each_commit_step() -> None:
    scene = stepper()
    scene.steps_to(3, A)
    scene.makes(4)
    scene.gets(4, A)
    scene.completes(4)
    assert scene.told(m.Stepped) == [m.Stepped(scene.at(4), state(4))]


def test_ranks_that_come_back_get_their_state_step_by_step() -> None:
    scene = stepper()
    scene.steps_to(3, A)
    scene.on(v.TrainersLost("crash"))
    assert scene.told(m.NotReadyToTrain)
    scene.on(v.TrainersReady())
    scene.on(v.BaseLoaded(0, START))
    for step in (1, 2, 3):
        assert applied(scene) == [step]
        scene.completes(step)
    assert scene.all(c.MakeStep) == [c.MakeStep(4, 7)]


# Standing still -------------------------------------------------------------------------------


def lost(scene: Stepper, peer: PeerId) -> int:
    """The log says that a member is gone; its index."""
    scene.reads(e.Lost(peer, "end of stream"))
    return scene.log.last_index


def test_a_survivor_reports_where_it_stands_and_what_it_holds() -> None:
    scene = stepper(C)
    scene.steps_to(2, A, C)
    scene.makes(3)
    scene.gets(3, A)
    index = lost(scene, C)
    held = (StepPayloads(3, (A, B)),)
    assert scene.told(m.StepsHalted) == [m.StepsHalted(scene.at(2), index, held)]
    assert describe(scene.core, scene.now).reason == "the next roster, from a, which leads"


def test_the_report_is_a_promise() -> None:
    """The missing payload comes late: kept, in case the Close counts on it, and not applied."""
    scene = stepper(C)
    scene.steps_to(2, A, C)
    scene.makes(3)
    scene.gets(3, C)
    index = lost(scene, C)
    scene.gets(3, A)
    assert steps_of(scene).payloads.of_step(1, 3).keys() == {A, B, C}
    assert applied(scene) == []
    assert not scene.sent(m.StepsHalted)
    # A new leader hears the same, and still nothing moves.
    scene.hears(A, m.Append(1, 2, scene.log.last_index, 1, (), scene.log.last_index))
    (report,) = scene.told(m.StepsHalted)
    assert isinstance(report, m.StepsHalted)
    assert (report.stamp, report.halted) == (scene.at(2), index)
    assert applied(scene) == []


def test_a_step_that_is_being_applied_is_finished_before_the_report() -> None:
    scene = stepper(C)
    scene.makes(1)
    scene.gets(1, A, C)
    lost(scene, C)
    assert not scene.sent(m.StepsHalted)
    scene.completes(1)
    (report,) = scene.told(m.StepsHalted)
    assert isinstance(report, m.StepsHalted)
    assert report.stamp.round == 1


def test_what_a_close_counts_on_is_fetched_from_its_provider_and_completed() -> None:
    scene = stepper(C)
    scene.steps_to(2, A, C)
    scene.makes(3)
    lost(scene, C)
    providers = (Provider(3, A, A), Provider(3, C, A))
    scene.reads(e.Close(1, 3, providers))
    assert scene.told(m.FetchSteps) == [m.FetchSteps(scene.core.run_state.lineage, 3, 3, (A, C))]
    scene.gets(3, A, C, sender=A)
    assert applied(scene) == [3]
    scene.completes(3)
    assert scene.told(m.Stepped) == [m.Stepped(scene.at(3), state(3))]
    scene.reads(view(2, A, B, first=4))
    assert scene.all(c.MakeStep) == [c.MakeStep(4, 10)]


def test_what_a_close_leaves_out_is_dropped_and_the_same_payload_serves_the_next_view() -> None:
    scene = stepper(C)
    scene.steps_to(2, A, C)
    scene.makes(3)
    scene.gets(3, A)
    lost(scene, C)
    scene.reads(e.Close(1, 2, ()))
    late = v.StepReceived(A, scene.at(3), C, payload(C, 3))
    assert scene.on(late) == [c.Discard(late)]
    scene.reads(view(2, A, B, first=3))
    assert not scene.all(c.MakeStep)
    stamp = scene.at(3, number=2)
    assert scene.all(c.SendStep) == [c.SendStep((A,), stamp, B, payload(B, 3))]
    scene.gets(3, A, number=2)
    assert [x.stamp for x in scene.all(c.ApplyStep)] == [stamp]


def test_a_lost_provider_stops_everybody_again() -> None:
    scene = stepper(C, D)
    scene.makes(1)
    lost(scene, D)
    scene.reads(e.Close(1, 1, (Provider(1, D, C),)))
    index = lost(scene, C)
    (report,) = scene.told(m.StepsHalted)
    assert isinstance(report, m.StepsHalted)
    assert (report.halted, report.stamp.round) == (index, 0)


def test_who_is_ahead_of_the_end_goes_back_to_the_base() -> None:
    """It followed without a part in the view, and the others did not wait for its word."""
    scene = Stepper(B)
    scene.joins(C)
    scene.reads(view(1, A, C, first=1))
    for step in (1, 2):
        scene.gets(step, A, C)
        scene.completes(step)
    scene.reads(e.Lost(C, "silent"), e.Close(1, 1, ()))
    assert scene.all(c.LoadBase) == [c.LoadBase(0)]
    scene.on(v.BaseLoaded(0, START))
    scene.completes(1)
    assert applied(scene) == []
    assert scene.told(m.Stepped) == [m.Stepped(scene.at(1), state(1))]


def test_payloads_of_a_view_that_we_have_not_read_of_yet_are_kept() -> None:
    scene = stepper()
    scene.steps_to(1, A)
    scene.reads(e.Halt(1, (), "c can take part"), e.Close(1, 1, ()))
    scene.gets(2, A, number=2)
    assert not scene.all(c.Discard)
    scene.reads(view(2, A, B, first=2))
    scene.makes(2)
    assert applied(scene) == [2]


# Its place ----------------------------------------------------------------------------------


def test_who_waits_too_long_says_for_whom() -> None:
    scene = stepper(C)
    scene.makes(1)
    scene.gets(1, A)
    said: list[tuple[PeerId, m.WaitsForPeers]] = []
    for _ in range(int(RULES.reduction_timeout_s) + 1):
        scene.beat()
        scene.hears(C, m.Heartbeat())
        scene.waits(1.0)
        said += scene.sent(m.WaitsForPeers)
    assert said == [(A, m.WaitsForPeers(scene.at(1), (C,)))]
    assert describe(scene.core, scene.now).reason == "step 1: c"


def test_an_earlier_life_in_the_roster_is_not_us() -> None:
    first = stepper()
    scene = Stepper(B, incarnation=2)
    scene.meets(A)
    scene.reads(*(entry.body for entry in first.log.entries))
    scene.on(v.RunAccepted(RULES))
    scene.on(v.TrainersReady())
    assert not scene.all(c.MakeStep)
    assert steps_of(scene).copy.step == -1


def test_the_last_step_is_a_commit_and_ends_the_run() -> None:
    scene = stepper()
    for step in (4, 8, 12, 16, 20):
        scene.steps_to(step, A)
        scene.reads(e.StepCommit(1, step, state(step)))
    scene.steps_to(24, A)
    assert not scene.core.finished
    scene.reads(e.StepCommit(1, 24, state(24)))
    assert scene.core.finished
    assert scene.told(m.Leave) == [m.Leave("finished")]


@pytest.mark.parametrize("number", [0, 2])
def test_an_answer_of_ranks_that_went_back_meanwhile_changes_nothing(number: int) -> None:
    scene = stepper()
    scene.makes(1)
    scene.gets(1, A)
    scene.on(v.TrainersLost("crash"))
    scene.completes(1, number=number)
    assert steps_of(scene).ranks.version == -1
