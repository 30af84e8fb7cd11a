"""The book of one attempt: who may say what when, and who is too slow."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from peers.ipc.messages import (
    NONE,
    Answer,
    Boundary,
    Contributed,
    RankHello,
    Result,
    SampleDemand,
    TensorPlace,
)
from peers.ipc.step_orders import Order, OrderKind
from peers.ranks.attempt import (
    OPEN_BOUNDARIES_MAX,
    PATIENCE_S,
    FirstStep,
    HangLimits,
    NeverAttached,
    OpenBoundaries,
    RankAttempt,
    RankFault,
    Stage,
    fragment_elements,
)
from protocols.types.ids import FrozenTensor
from protocols.types.sample_ranges import SampleRange

NOT_NOW = Answer(fragment=NONE)
RESULT = Result(fragment=0, place=0, kind="full", version=1, inner_step=0, boundary_steps=9)
LAYOUT = (TensorPlace(0, "a", (2, 3), 0), TensorPlace(0, "b", (4,), 6), TensorPlace(1, "c", (), 0))


LIMITS = HangLimits(40.0, attach_timeout_s=50.0, first_step_timeout_s=60.0)


def new_attempt(ranks: int = 2, *, limits: HangLimits = LIMITS) -> RankAttempt:
    return RankAttempt(3, ranks=ranks, hang_limits=limits, decide_boundary=lambda _: NOT_NOW)


def hello(rank: int, world_size: int = 2) -> RankHello:
    return RankHello(rank=rank, world_size=world_size, attempt=3, pid=1)


def contributed(attempt: RankAttempt, rank: int, generation: int, **said: Any) -> bool:
    values: dict[str, Any] = {"fragment": 0, "steps": 10, **said}
    return attempt.contributed(rank, Contributed(generation=generation, tokens=5, **values))


def report(attempt: RankAttempt, rank: int) -> None:
    attempt.hello(hello(rank))
    attempt.configured(rank)


def ready_attempt() -> RankAttempt:
    attempt = new_attempt()
    for rank in (0, 1):
        report(attempt, rank)
        attempt.layout(rank, LAYOUT, (5, 6)[rank])
    for rank in (0, 1):
        attempt.attached(rank, (1, 8))
        attempt.ready(rank)
    return attempt


def train(attempt: RankAttempt, *fragments: int, **said: Any) -> None:
    for fragment in fragments or (0, 1):
        attempt.result_sent(replace(RESULT, fragment=fragment, **said))


def asked(steps: int, *left: int) -> Boundary:
    return Boundary(steps=steps, due=False, left=left or (0, 1))


def test_the_layout_is_known_when_all_have_reported_it() -> None:
    attempt = new_attempt()
    report(attempt, 1)
    report(attempt, 0)
    assert attempt.in_stage(Stage.BUILDING) == [0, 1]
    assert attempt.layout(1, LAYOUT, 4) is None
    assert attempt.layout(0, LAYOUT, 7) == LAYOUT
    assert not attempt.is_ready
    attempt.attached(0, (1, 1))
    attempt.attached(1, (1, 1))
    assert not attempt.ready(1)
    assert attempt.ready(0)
    assert attempt.is_ready


def test_ranks_must_cover_the_layout_exactly() -> None:
    attempt = new_attempt()
    report(attempt, 0)
    report(attempt, 1)
    attempt.layout(0, LAYOUT, 5)
    with pytest.raises(RankFault, match="write 10 elements, their layout has 11"):
        attempt.layout(1, LAYOUT, 5)


def test_ranks_must_report_the_same_layout() -> None:
    attempt = new_attempt()
    report(attempt, 0)
    report(attempt, 1)
    attempt.layout(0, LAYOUT, 5)
    with pytest.raises(RankFault, match=r"rank 1 has TensorSpec\(fragment=0, name='other'"):
        attempt.layout(1, (LAYOUT[0], TensorPlace(0, "other", (4,), 6), LAYOUT[2]), 6)


def test_ranks_add_up_the_digests_of_frozen_tensors() -> None:
    attempt = new_attempt()
    report(attempt, 0)
    report(attempt, 1)
    base = FrozenTensor("base", "BF16", (2,), (1 << 32) - 1)
    attempt.layout(0, LAYOUT, 5, (base, base._replace(name="more", digest=4)))
    ours = base._replace(digest=3), base._replace(name="more", digest=5)
    assert attempt.layout(1, LAYOUT, 6, ours) == LAYOUT
    assert [each.digest for each in attempt.frozen] == [2, 9]
    assert [each[:3] for each in attempt.frozen] == [each[:3] for each in ours]


@pytest.mark.parametrize("change", [{"name": "other"}, {"shape": (3,)}, {"type": "F32"}])
def test_ranks_must_report_the_same_frozen_tensors(change: dict[str, Any]) -> None:
    attempt = new_attempt()
    report(attempt, 0)
    report(attempt, 1)
    base = FrozenTensor("base", "BF16", (2,), 1)
    attempt.layout(0, LAYOUT, 5, (base,))
    attempt.layout(1, LAYOUT, 6, (base._replace(**change),))
    with pytest.raises(RankFault, match="rank 1 has other frozen tensors than rank 0"):
        _ = attempt.frozen


def test_elements_are_counted_by_fragment() -> None:
    assert fragment_elements(LAYOUT) == (10, 1)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ((), "numbered from 0"),
        ((TensorPlace(1, "a", (2,), 0),), "numbered from 0"),
        ((TensorPlace(0, "a", (2,), 1),), "lies at element 1"),
        ((TensorPlace(0, "a", (2,), 0), TensorPlace(0, "b", (2,), 1)), "ends at 2"),
        ((TensorPlace(0, "a", (0,), 0),), "shape"),
        ((TensorPlace(0, "a", (1,) * 17, 0),), "shape"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tensors: tuple[TensorPlace, ...], why: str) -> None:
    with pytest.raises(RankFault, match=why):
        fragment_elements(tensors)


def test_strangers_and_twins_are_refused() -> None:
    attempt = new_attempt()
    with pytest.raises(RankFault, match="world of 3, not 2"):
        attempt.hello(hello(0, world_size=3))
    with pytest.raises(RankFault, match="rank 2 of 2"):
        attempt.hello(hello(2))
    attempt.hello(hello(0))
    with pytest.raises(RankFault, match="out of turn"):
        attempt.hello(hello(0))
    with pytest.raises(RankFault, match="out of turn"):
        attempt.layout(0, LAYOUT, 11)
    with pytest.raises(RankFault, match="rank 9 of 2"):
        attempt.ready(9)


def test_all_ranks_get_the_same_answer_and_it_is_decided_once() -> None:
    answers = {asked(5): Answer(fragment=1), asked(6): NOT_NOW}
    attempt = ready_attempt()
    attempt._boundaries = OpenBoundaries(answers.pop)  # A second time there would be none.
    assert [attempt.boundary(1, asked(steps)).fragment for steps in (5, 6)] == [1, NONE]
    assert [attempt.boundary(0, asked(steps)).fragment for steps in (5, 6)] == [1, NONE]
    assert not answers


def test_a_rank_that_runs_away_is_a_fault() -> None:
    attempt = ready_attempt()
    for steps in range(OPEN_BOUNDARIES_MAX):
        attempt.boundary(0, asked(steps))
    with pytest.raises(RankFault, match="others do not reach"):
        attempt.boundary(0, asked(OPEN_BOUNDARIES_MAX))
    for left in (Boundary(steps=1, due=True, left=()), asked(1, 0, 2), asked(1, -1)):
        with pytest.raises(RankFault, match="rank 1 asks for fragments"):
            attempt.boundary(1, left)
    early = new_attempt()
    with pytest.raises(RankFault, match="before all ranks are attached"):
        early.boundary(0, asked(1))


def test_a_rank_may_contribute_while_another_is_still_on_its_way() -> None:
    """Initial parameters are written at once: found by the first demo with two ranks."""
    attempt = new_attempt()
    for rank in (0, 1):
        report(attempt, rank)
        attempt.layout(rank, LAYOUT, (5, 6)[rank])
        attempt.attached(rank, (1, 8))
    with pytest.raises(RankFault, match="sends Contributed before it is attached"):
        contributed(attempt, 1, 1, steps=0)
    with pytest.raises(RankFault, match="rank 0 sends Metrics before it is attached"):
        attempt.check_attached(0, "Metrics")
    attempt.ready(1)
    attempt.check_attached(1, "Metrics")
    assert not contributed(attempt, 1, 1, steps=0)
    attempt.ready(0)
    assert contributed(attempt, 0, 1, steps=0)


def test_ranks_wait_for_a_lease_together_and_do_not_hang_meanwhile() -> None:
    attempt = ready_attempt()
    train(attempt)
    demand = SampleDemand(step_samples=8, ahead=4)
    assert not attempt.demanded(0, demand)
    assert attempt.in_stage(Stage.IDLE) == [0]
    assert attempt.demanded(1, demand)
    for _ in range(1000):
        attempt.tick((0, 0))
    attempt.granted()
    assert attempt.in_stage(Stage.TRAINING) == [0, 1]
    assert not attempt.demanded(1, demand)
    with pytest.raises(RankFault, match="ranks disagree on the samples of a step"):
        attempt.demanded(0, replace(demand, ahead=5))
    with pytest.raises(RankFault, match="SampleDemand before it is attached"):
        new_attempt().demanded(0, demand)


def test_a_contribution_counts_when_all_ranks_are_done() -> None:
    attempt = ready_attempt()
    train(attempt)
    assert not contributed(attempt, 1, 1)
    assert not contributed(attempt, 0, 8, fragment=1)
    assert not attempt.contributed_once
    assert contributed(attempt, 0, 1)
    assert attempt.contributed_once
    assert contributed(attempt, 1, 8, fragment=1)
    assert not contributed(attempt, 0, 2)


@pytest.mark.parametrize(
    ("generation", "fragment", "why"),
    [(2, 0, "1 is next"), (0, 0, "1 is next"), (1, 2, "not there")],
)
def test_a_contribution_out_of_order_is_a_fault(generation: int, fragment: int, why: str) -> None:
    with pytest.raises(RankFault, match=why):
        contributed(ready_attempt(), 0, generation, fragment=fragment)


def test_ranks_must_agree_on_the_counts() -> None:
    attempt = ready_attempt()
    contributed(attempt, 0, 1, steps=10)
    with pytest.raises(RankFault, match="disagree"):
        contributed(attempt, 1, 1, steps=11)


def test_ranks_must_agree_on_what_their_steps_saw() -> None:
    attempt = ready_attempt()
    contributed(attempt, 0, 1, samples=(SampleRange(0, 8),))
    with pytest.raises(RankFault, match="disagree on the samples"):
        contributed(attempt, 1, 1, samples=(SampleRange(0, 9),))


def test_a_rank_must_not_overwrite_a_contribution_that_is_not_complete() -> None:
    attempt = ready_attempt()
    contributed(attempt, 0, 1)
    contributed(attempt, 0, 2)
    with pytest.raises(RankFault, match="overwrites generation 1"):
        contributed(attempt, 0, 3)


def test_a_snapshot_is_complete_when_all_ranks_have_written_it() -> None:
    attempt = ready_attempt()
    train(attempt, 0, snapshot="there")
    assert not attempt.snapshotted(1, "there")
    assert not attempt.snapshotted(1, "there")
    assert attempt.snapshotted(0, "there")
    with pytest.raises(RankFault, match="without an order"):
        attempt.snapshotted(0, "there")


def test_ranks_may_end_only_when_told_to() -> None:
    attempt = ready_attempt()
    assert not attempt.ended(0, 0)
    assert not attempt.finishing
    train(attempt, 1, finish=True)
    assert not attempt.finishing
    train(attempt, 0, finish=True)
    assert attempt.finishing
    assert not attempt.ended(1, 0)
    assert not attempt.ended(0, -9)
    assert attempt.ended(0, 0)
    assert attempt.ended(None, 0)
    assert not attempt.ended(None, 1)


def test_a_rank_that_trains_no_more_is_waited_for_without_end() -> None:
    attempt = ready_attempt()
    train(attempt)
    assert not attempt.trains_no_more(1)
    train(attempt)  # A result for the other one.
    for step in range(1000):
        attempt.tick([step, 7])
    assert attempt.in_stage(Stage.DONE) == [1]
    assert attempt.trains_no_more(0)
    for _ in range(1000):
        attempt.tick([999, 7])


def test_the_end_of_a_rank_that_has_trained_nothing_is_no_leave() -> None:
    attempt = new_attempt(ranks=1)
    attempt.hello(hello(0, world_size=1))
    attempt.configured(0)
    assert not attempt.trains_no_more(0)
    finished = ready_attempt()
    train(finished, finish=True)
    assert not finished.trains_no_more(0)
    assert not finished.trains_no_more(1), "they were told to end"


def test_a_standing_step_counter_means_a_hang_only_while_training() -> None:
    attempt = ready_attempt()
    for _ in range(1000):
        attempt.tick([0, 0])
    train(attempt)
    for step in range(1000):
        attempt.tick([step, step])
    contributed(attempt, 0, 1)
    for step in range(1000, 1039):
        attempt.tick([1000, step])
    for _ in range(40):  # The first one still sees a new step.
        attempt.tick([1000, 1039])
    with pytest.raises(
        RankFault, match=r"rank 1 hangs: it counts no step for 40 s \(at step 1039; node\.hang_"
    ):
        attempt.tick([1000, 1039])


def test_who_gets_another_result_yet_may_wait_for_it() -> None:
    attempt = ready_attempt()
    train(attempt)
    for fragment, generation in ((0, 1), (1, 8)):
        for rank in (0, 1):
            contributed(attempt, rank, generation, fragment=fragment)
    train(attempt, 1)
    for _ in range(1000):
        attempt.tick([5, 5])
    train(attempt, 0)
    assert attempt.in_stage(Stage.TRAINING) == [0, 1]


def test_extra_work_has_longer_until_steps_are_counted_again() -> None:
    attempt = ready_attempt()
    train(attempt, evaluate=True)
    for _ in range(500):
        attempt.tick([0, 0])
    attempt.tick([1, 1])
    for _ in range(39):
        attempt.tick([1, 1])
    with pytest.raises(RankFault, match="rank 0 hangs"):
        attempt.tick([1, 1])


@pytest.mark.parametrize("extra", [{}, {"evaluate": True}])
def test_the_first_step_of_a_process_has_a_limit_of_its_own(extra: dict[str, bool]) -> None:
    """It may be compiled, also after an evaluation."""
    limits = replace(LIMITS, first_step_timeout_s=900.0)
    attempt = new_attempt(ranks=1, limits=limits)
    attempt.hello(hello(0, world_size=1))
    attempt.configured(0)
    attempt.layout(0, LAYOUT, 11)
    attempt.attached(0, (1, 1))
    attempt.ready(0)
    train(attempt, **extra)
    assert attempt.first_step == FirstStep(0.0, 900.0)
    for _ in range(899):
        attempt.tick([0])
    assert attempt.first_step == FirstStep(899.0, 900.0)
    slow = deepcopy(attempt)
    with pytest.raises(RankFault, match=r"first step for 900 s .*node\.first_step_timeout_s\)"):
        slow.tick([0])
    attempt.tick([1])
    assert attempt.first_step is None
    for _ in range(39):
        attempt.tick([1])
    with pytest.raises(RankFault, match=r"no step for 40 s \(at step 1; node\.hang_timeout_s\)"):
        attempt.tick([1])


def test_a_program_that_never_attaches_is_told_the_key() -> None:
    attempt = new_attempt()
    attempt.hello(hello(0))
    for _ in range(49):
        attempt.tick([0, 0])
    complaint = (
        r"^rank 1 has not called lowcomm\.attach\(\) within 50 s \(node\.attach_timeout_s\)$"
    )
    with pytest.raises(NeverAttached, match=complaint):
        attempt.tick([0, 0])


@pytest.mark.parametrize("stage", [Stage.BUILDING, Stage.MAPPING, Stage.WORKING])
def test_every_stage_that_is_a_ranks_turn_ends(stage: Stage) -> None:
    attempt = new_attempt(ranks=1)
    attempt.hello(hello(0, world_size=1))
    attempt.configured(0)
    if stage in {Stage.MAPPING, Stage.WORKING}:
        attempt.layout(0, LAYOUT, 11)
        attempt.attached(0, (1, 1))
    if stage is Stage.WORKING:
        attempt.ready(0)
        train(attempt, finish=True)
    ticks = round(PATIENCE_S[stage] / attempt.hang_limits.tick_s)
    for _ in range(ticks - 1):
        attempt.tick([0])
    with pytest.raises(RankFault, match=f"rank 0 hangs: it {stage.value}"):
        attempt.tick([0])


def test_a_configured_limit_above_that_of_a_stage_counts() -> None:
    """A large model from a slow disk takes longer than ten minutes."""
    attempt = new_attempt(ranks=1, limits=HangLimits(900.0))
    attempt.hello(hello(0, world_size=1))
    attempt.configured(0)
    for _ in range(round(900.0 / attempt.hang_limits.tick_s) - 1):
        attempt.tick([0])
    with pytest.raises(RankFault, match="did not report its layout for 900 s"):
        attempt.tick([0])


@pytest.mark.parametrize("stage", [Stage.GREETED, Stage.REPORTED])
def test_a_rank_that_waits_for_us_waits(stage: Stage) -> None:
    attempt = new_attempt(ranks=1)
    attempt.hello(hello(0, world_size=1))
    if stage is Stage.REPORTED:
        attempt.configured(0)
        attempt.layout(0, LAYOUT, 11)
    for _ in range(10_000):
        attempt.tick([0])
    assert attempt.in_stage(stage) == [0]


def ordered(attempt: RankAttempt, number: int, kind: OrderKind, snapshot: str = "") -> None:
    attempt.ordered(Order(number=number, kind=kind, step=1, snapshot=snapshot))


def test_an_order_is_obeyed_when_all_ranks_have() -> None:
    attempt = ready_attempt()
    ordered(attempt, 1, "load")
    assert not attempt.obeyed(1, 1)
    assert attempt.in_stage(Stage.IDLE) == [1]
    assert attempt.obeyed(0, 1)
    assert not attempt.contributed_once, "it may crash at each first step"
    ordered(attempt, 2, "make")
    assert not attempt.obeyed(0, 2)
    assert attempt.obeyed(1, 2)
    assert attempt.contributed_once


@pytest.mark.parametrize("number", [0, 1, 3])
def test_who_obeys_what_it_was_not_told_is_at_fault(number: int) -> None:
    attempt = ready_attempt()
    with pytest.raises(RankFault, match="which it has not got"):
        attempt.obeyed(0, number)
    for given in (1, 2):
        ordered(attempt, given, "apply")
    with pytest.raises(RankFault, match="which it has not got"):
        attempt.obeyed(0, number)
    assert not attempt.obeyed(0, 2)
    with pytest.raises(RankFault, match="which it has not got"):
        attempt.obeyed(0, 2)


def goes_on() -> RankAttempt:
    attempt = ready_attempt()
    attempt.ordered(Order(number=5, kind="apply", step=3, go_on=True))
    return attempt


def test_an_order_that_goes_on_is_two_and_ranks_need_not_wait_for_each_other() -> None:
    attempt = goes_on()
    assert not attempt.obeyed(0, 5)
    assert not attempt.obeyed(0, 6)
    assert attempt.obeyed(1, 5), "all have the state after the step"
    assert attempt.obeyed(1, 6)
    assert attempt.contributed_once
    attempt = goes_on()
    assert [attempt.obeyed(*each) for each in ((0, 5), (1, 5), (1, 6), (0, 6))] == [False, True] * 2


@pytest.mark.parametrize("done", [[(0, 6)], [(0, 5), (0, 6), (0, 6)], [(0, 5), (0, 7)]])
def test_what_follows_an_order_is_obeyed_after_it_and_once(done: list[tuple[int, int]]) -> None:
    attempt = goes_on()
    for rank, number in done[:-1]:
        attempt.obeyed(rank, number)
    with pytest.raises(RankFault, match=r"obeys order \d+"):
        attempt.obeyed(*done[-1])


def test_a_rank_that_hangs_in_what_follows_is_found() -> None:
    attempt = goes_on()
    for rank in (0, 1):
        attempt.obeyed(rank, 5)
    attempt.obeyed(0, 6)
    for _ in range(40):  # The first one sees a new step.
        attempt.tick([1, 1])
    with pytest.raises(RankFault, match="rank 1 hangs"):
        attempt.tick([1, 1])


def test_ranks_that_obey_no_order_hang() -> None:
    attempt = ready_attempt()
    attempt.tick([1, 1])  # They have made their first step.
    ordered(attempt, 1, "apply", snapshot="on a slow disk")
    for _ in range(100):
        attempt.tick([1, 1])
    ordered(attempt, 2, "make")
    for _ in range(39):
        attempt.tick([1, 1])
    with pytest.raises(RankFault, match="rank 0 hangs: it counts no step for 40 s"):
        attempt.tick([1, 1])


def test_ranks_end_when_they_were_told_to_finish() -> None:
    attempt = ready_attempt()
    ordered(attempt, 1, "finish")
    assert not attempt.ended(0, 0)
    assert attempt.ended(1, 0)
