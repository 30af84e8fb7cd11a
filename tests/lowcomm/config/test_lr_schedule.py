"""Learning rates by what the run has committed."""

import pytest

from lowcomm.config.lr_schedule import CosineSchedule, warmup
from lowcomm.config.schema import AdamWConfig, RunConfig
from lowcomm.methods import AnyMethod, DiLoCoMethod, StreamingDiLoCoMethod


def test_the_schedule_warms_up_and_ends_at_its_last_fraction() -> None:
    schedule = CosineSchedule(warmup_steps=4, total_steps=104, final=0.1)
    assert [schedule(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert schedule(54) == pytest.approx((1 + 0.1) / 2)
    assert schedule(104) == pytest.approx(0.1)
    assert schedule(10**9) == schedule(104)
    factors = [schedule(step) for step in range(4, 105)]
    assert factors == sorted(factors, reverse=True)


def test_a_schedule_without_warm_up_begins_at_its_top() -> None:
    assert CosineSchedule(warmup_steps=0, total_steps=10, final=0.5)(0) == 1.0


def test_a_run_shorter_than_its_warm_up_still_warms_up() -> None:
    schedule = CosineSchedule(warmup_steps=8, total_steps=4, final=0.5)
    assert schedule(3) == 0.5
    assert schedule(8) == 1.0
    assert schedule(9) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("method", "total"),
    [
        (DiLoCoMethod(inner_steps=3), 21),
        (StreamingDiLoCoMethod(inner_steps=3, overlap_steps=2, mixing=0.5), 21),
        # Of each round but the last, two steps are replaced by its result.
        (StreamingDiLoCoMethod(inner_steps=3, overlap_steps=2, mixing=0.0), 9),
    ],
)
def test_the_schedule_of_a_run_counts_its_committed_inner_steps(
    method: AnyMethod, total: int
) -> None:
    optimizer = AdamWConfig(warmup_steps=2, lr_final=0.2)
    run = RunConfig(outer_steps=7, method=method, optimizer=optimizer)
    assert CosineSchedule.of(run) == CosineSchedule(warmup_steps=2, total_steps=total, final=0.2)


def test_a_warm_up_is_over_after_its_steps() -> None:
    assert [warmup(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup(0, 0) == 1.0
