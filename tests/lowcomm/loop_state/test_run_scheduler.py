"""A torch scheduler that follows the run's steps."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from lowcomm.loop_state.run_scheduler import lr_scheduler
from protocols.types import ConfigError

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "step": lambda optimizer: StepLR(optimizer, step_size=3, gamma=0.5),
    "milestones": lambda optimizer: MultiStepLR(optimizer, milestones=[2, 5], gamma=0.1),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=10),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.2, total_steps=20),
    "sequence": lambda optimizer: SequentialLR(
        optimizer, [StepLR(optimizer, 2), CosineAnnealingLR(optimizer, 8)], milestones=[4]
    ),
}


class Progress:
    """The progress of a run, as a method tells it."""

    inner_step = 0


def optimizer_of() -> torch.optim.Optimizer:
    return torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=0.1)


def values_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """Rate and momentum factors."""
    (group,) = optimizer.param_groups
    return [group["lr"], *group["betas"]]


def values_at(name: str, step: int) -> list[float]:
    """The values in a process that made all steps itself."""
    optimizer = optimizer_of()
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(step):
        optimizer.step()
        scheduler.step()
    return values_of(optimizer)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_rate_is_that_of_the_run_s_step(name: str) -> None:
    optimizer, progress = optimizer_of(), Progress()
    scheduler = lr_scheduler(SCHEDULERS[name](optimizer), progress)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # As it goes, for a joiner, after a rollback, and on from there.
        for step in (0, 1, 2, 12, 12, 3, 4, 0, 7):
            progress.inner_step = step
            optimizer.step()
            scheduler.step()
            assert values_of(optimizer) == pytest.approx(values_at(name, step)), step
            assert scheduler.get_last_lr() == values_of(optimizer)[:1]


def test_a_rate_in_a_tensor_is_that_of_the_run_s_step_after_each_of_two_rollbacks() -> None:
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=rate)
    progress = Progress()
    scheduler = lr_scheduler(SCHEDULERS["step"](optimizer), progress)
    (group,), own = optimizer.param_groups, optimizer.param_groups[0]["lr"]
    for step in (7, 0, 7, 0, 4):
        progress.inner_step = step
        optimizer.step()
        scheduler.step()
        assert float(group["lr"]) == pytest.approx(values_at("step", step)[0]), step
        assert group["lr"] is own, "a compiled step reads this tensor"


def test_a_joiner_begins_with_the_present_rate() -> None:
    optimizer, progress = optimizer_of(), Progress()
    progress.inner_step = 6
    lr_scheduler(SCHEDULERS["step"](optimizer), progress)
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2


def test_a_scheduler_that_follows_the_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"peer\.keep"):
        lr_scheduler(ReduceLROnPlateau(optimizer_of()), Progress())
