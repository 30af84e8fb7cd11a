"""Computes the number of inner steps of a round.

Pure functions of the agreed configuration and of the committed inner steps, so that all nodes, and
all ranks of a node, get equal results. Must NOT import torch: the daemon uses it too.
"""

import math
from collections.abc import Iterator

from lowcomm.config.lr_schedule import CosineSchedule
from lowcomm.config.schema import RunConfig
from lowcomm.methods import RoundMethod

_QSR_SLACK = 1e-9
"""Added before rounding down: if alpha is three times the learning rate, a round has 9 steps,
though fp64 may give 8.999..."""


def round_steps(run: RunConfig, inner_step: int) -> int:
    """Return the largest number of inner steps of the round that begins after `inner_step`
    committed inner steps.

    If `qsr_alpha` is set, the Quadratic Synchronization Rule holds: max(H, floor((alpha / lr)^2)),
    but no more steps than the run has left; H while the learning rate warms up.
    """
    method, optimizer = run.method, run.optimizer
    assert isinstance(method, RoundMethod)
    left = run.total_inner_steps - inner_step
    if not method.qsr_alpha or inner_step < optimizer.warmup_steps or left <= 0:
        return method.inner_steps
    lr = optimizer.lr * CosineSchedule.of(run)(inner_step)
    ratio = method.qsr_alpha / lr if lr else math.inf
    longer = math.floor(min(ratio * ratio + _QSR_SLACK, left))
    return min(max(method.inner_steps, longer), left)


def early_steps(run: RunConfig, steps: int, *, joins: bool) -> int:
    """Return the number of inner steps in a round of `steps`, after which the ranks begin to ask
    whether to contribute early. If it equals `steps`, they do not ask. `joins`: the ranks have not
    contributed to any round yet."""
    assert isinstance(run.method, RoundMethod)
    if run.method.answers:
        return 0
    if run.method.round_s:
        return 1
    return -(-steps // 2) if joins else steps


def planned_rounds(run: RunConfig) -> int:
    """Return the number of commits of fragment 0 after which the run is finished: `outer_steps` or,
    if rounds grow longer, the smaller number that has as many inner steps."""
    method = run.method
    if not isinstance(method, RoundMethod) or not method.qsr_alpha:
        return run.outer_steps
    return sum(1 for _ in _lengths(run))


def longest_round(run: RunConfig) -> int:
    """Return the number of inner steps of the run's longest round."""
    assert isinstance(run.method, RoundMethod)
    return max(_lengths(run)) if run.method.qsr_alpha else run.method.inner_steps


def _lengths(run: RunConfig) -> Iterator[int]:
    """Yield the inner steps of each round, if none is cut short."""
    step = 0
    while step < run.total_inner_steps:
        steps = round_steps(run, step)
        yield steps
        step += steps
