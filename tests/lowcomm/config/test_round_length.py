"""How long rounds are, by what the run has committed."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lowcomm.config.round_length import early_steps, longest_round, planned_rounds, round_steps
from lowcomm.config.schema import AdamWConfig, RunConfig
from lowcomm.methods import AllReduceMethod, DecoupledDiLoCoMethod, DiLoCoMethod, LocalSGDMethod


def qsr(
    alpha: float, *, outer_steps: int = 50, inner_steps: int = 4, **optimizer: Any
) -> RunConfig:
    said: dict[str, Any] = {"lr": 8e-3, "warmup_steps": 20, "lr_final": 0.01}
    return RunConfig(
        outer_steps=outer_steps,
        method=DiLoCoMethod(inner_steps=inner_steps, qsr_alpha=alpha),
        optimizer=AdamWConfig(**(said | optimizer)),
    )


def lengths(run: RunConfig) -> list[int]:
    found: list[int] = []
    while sum(found) < run.total_inner_steps:
        found.append(round_steps(run, sum(found)))
    return found


@given(st.floats(1e-3, 1.0), st.integers(1, 300), st.integers(1, 9), st.integers(0, 50))
def test_rounds_are_as_long_as_the_quadratic_rule_says(
    alpha: float, outer_steps: int, inner_steps: int, warmup_steps: int
) -> None:
    """As the paper's own code: https://github.com/hmgxr128/QSR, localopt.py, `adjust_h`."""
    run = qsr(alpha, outer_steps=outer_steps, inner_steps=inner_steps, warmup_steps=warmup_steps)
    total, step = outer_steps * inner_steps, 0
    for found in lengths(run):
        wanted = inner_steps
        if step >= warmup_steps:
            falling = max(total - warmup_steps, 1)
            cosine = (1 + math.cos(math.pi * (step - warmup_steps) / falling)) / 2
            square = (alpha / (8e-3 * (0.01 + 0.99 * cosine))) ** 2
            if abs(square - round(square)) < 1e-6:
                return  # Which of two it is, the last bits say.
            wanted = max(inner_steps, math.floor(square))
        assert found == (wanted if step < warmup_steps else min(wanted, total - step))
        step += found


def test_a_run_with_longer_rounds_has_fewer_of_them_and_the_same_steps() -> None:
    plain, longer = qsr(0.0), qsr(0.0175)  # As the paper has it for a ViT-B, at this rate.
    assert lengths(plain) == [4] * 50
    assert planned_rounds(plain) == 50
    assert longest_round(plain) == 4
    found = lengths(longer)
    assert found[:6] == [4] * 6, "first it warms up, and then (0.0175 / 0.008)^2 is 4.8"
    assert sum(found) == longer.total_inner_steps == plain.total_inner_steps
    assert found[:-1] == sorted(found[:-1]), "the last is what is left"
    assert planned_rounds(longer) == len(found) < 50
    assert longest_round(longer) == max(found) > 4


def test_alpha_in_multiples_of_the_rate_is_what_it_says() -> None:
    for times in range(1, 30):
        run = qsr(times * 0.1, inner_steps=1, outer_steps=10_000, lr=0.1, warmup_steps=0)
        assert round_steps(run, 0) == times * times


def test_a_rate_of_nothing_makes_the_rest_one_round() -> None:
    run = qsr(0.01, lr_final=0.0, outer_steps=5, warmup_steps=0)
    assert round_steps(run, 19) == 1
    assert round_steps(replace(run, method=DiLoCoMethod(inner_steps=4, qsr_alpha=1e300)), 0) == 20


def test_who_has_more_steps_than_were_planned_goes_on_as_without_the_rule() -> None:
    run = qsr(0.0175)
    assert round_steps(run, 200) == round_steps(run, 1000) == 4


def test_of_methods_without_longer_rounds_as_many_are_planned_as_are_typed() -> None:
    assert planned_rounds(RunConfig(outer_steps=7, method=AllReduceMethod())) == 7
    assert planned_rounds(RunConfig(outer_steps=7, method=LocalSGDMethod())) == 7


def test_ranks_ask_early_in_a_first_round_and_where_rounds_have_a_time_or_nodes_answer() -> None:
    plain, timed = RunConfig(method=DiLoCoMethod()), RunConfig(method=DiLoCoMethod(round_s=1.0))
    assert early_steps(plain, 9, joins=False) == 9
    assert early_steps(plain, 9, joins=True) == 5
    assert early_steps(timed, 9, joins=False) == early_steps(timed, 9, joins=True) == 1
    asked = RunConfig(method=DecoupledDiLoCoMethod())
    assert early_steps(asked, 9, joins=False) == early_steps(asked, 9, joins=True) == 0
