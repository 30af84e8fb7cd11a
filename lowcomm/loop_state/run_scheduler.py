"""Has a torch scheduler follow the run's steps instead of this process's.

A joiner begins with the rate of the run's present step, and ranks that start again go on with it.
Must NOT know a method beyond its `inner_step`.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from protocols.types import ConfigError


class RunProgress(Protocol):
    """A method of rounds, as far as it is needed here."""

    @property
    def inner_step(self) -> int:
        """The run's committed inner steps, plus this node's steps since."""
        ...


class RunScheduler:
    """A scheduler of the run's inner steps. `lowcomm.lr_scheduler` makes one."""

    def __init__(self, scheduler: LRScheduler, method: RunProgress) -> None:
        self._scheduler, self._method = scheduler, method
        self._groups: list[dict[str, Any]] = scheduler.optimizer.param_groups
        self._first = copy.deepcopy(scheduler.state_dict())
        self._first_values = [_values(group) for group in self._groups]
        self.step()

    def step(self) -> None:
        """Set the learning rates of the run's present inner step. Call it after each
        `method.step()`."""
        scheduler, target = self._scheduler, self._method.inner_step
        if scheduler.last_epoch == target - 1:
            scheduler.step()
            return
        if target < scheduler.last_epoch:  # The run was rolled back, or this node's steps are void.
            scheduler.load_state_dict(copy.deepcopy(self._first))
            for group, values in zip(self._groups, self._first_values, strict=True):
                _give(group, values)
        with warnings.catch_warnings():
            # torch warns of a scheduler that is ahead of its optimizer; others made these steps.
            warnings.simplefilter("ignore", UserWarning)
            while scheduler.last_epoch < target:
                scheduler.step()

    def get_last_lr(self) -> list[Any]:
        """The present learning rate of each parameter group."""
        return self._scheduler.get_last_lr()


def lr_scheduler(scheduler: LRScheduler, method: RunProgress) -> RunScheduler:
    """Have `scheduler`, just made, follow the run's inner steps: call `step()` of the result after
    each `method.step()`.

    Use it instead of the scheduler's own `step()`, for a method of rounds that was made without
    `schedule=`. The result needs no `peer.keep`. Raises ConfigError for ReduceLROnPlateau, which
    follows a loss and not the steps.
    """
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError(
            "ReduceLROnPlateau follows the loss of one node, and no step of the run: use it "
            "without lowcomm.lr_scheduler, and peer.keep it"
        )
    return RunScheduler(scheduler, method)


def _values(group: dict[str, Any]) -> dict[str, Any]:
    """The values of a parameter group, without its parameters."""
    return {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}


def _give(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Give the group these values. A tensor of the group (a rate that a compiled step reads) gets
    the content: a scheduler changes it in place, and so would change the values themselves."""
    for key, value in values.items():
        if isinstance(value, Tensor) and isinstance(group[key], Tensor):
            group[key].copy_(value)
        else:
            group[key] = copy.deepcopy(value)
