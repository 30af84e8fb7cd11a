"""The budget of restarts, and its back-off."""

import pytest

from lowcomm.launching.restart_budget import DELAY_MAX_S, FINAL, HEALTHY_S, RestartBudget


def test_each_restart_waits_twice_as_long_up_to_a_limit() -> None:
    budget = RestartBudget(9)
    delays = [budget.after(-9, lived_s=1.0)[0] for _ in range(10)]
    assert delays == [1, 2, 4, 8, 16, 32, DELAY_MAX_S, DELAY_MAX_S, DELAY_MAX_S, None]


def test_a_long_life_gives_the_budget_back() -> None:
    budget = RestartBudget(1)
    assert budget.after(4, lived_s=0.1) == (1.0, "it ended with 4: restart 1 of 1")
    assert budget.after(4, lived_s=HEALTHY_S) == (1.0, "it ended with 4: restart 1 of 1")
    assert budget.after(4, lived_s=HEALTHY_S - 1) == (
        None,
        "it ended with 4, and had 1 restarts in a row",
    )


@pytest.mark.parametrize("code", FINAL)
def test_an_end_that_a_restart_cannot_mend_or_that_was_wanted_is_final(code: int) -> None:
    assert RestartBudget(5).after(code, lived_s=1.0) == (None, FINAL[code])


@pytest.mark.parametrize("code", [1, 4, -9, -11, 137, 75])
def test_every_other_end_is_followed_by_a_restart(code: int) -> None:
    assert RestartBudget(5).after(code, lived_s=1.0)[0] == 1.0
