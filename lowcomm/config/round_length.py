"""How many inner steps a round has.

Pure functions of the agreed configuration and of what the run has committed, so all nodes, and all
ranks of a node, come to the same. Must NOT import torch: the daemon asks too.
"""

import math
from collections.abc import Iterator

from lowcomm.config.lr_schedule import CosineSchedule
from lowcomm.config.schema import RunConfig
from lowcomm.methods import RoundMethod

_QSR_SLACK = 1e-9
"""Who sets alpha to three times the learning rate means 9 steps, not the 8.999... of fp64."""


def round_steps(run: RunConfig, inner_step: int) -> int:
    """How many inner steps the round has, at most, that begins when the run has committed so many.

    The Quadratic Synchronization Rule, if `qsr_alpha` is set: max(H, floor((alpha / lr)^2)), but
    no more than the run has left; H while the learning rate warms up.
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
    """After so many steps of a round of `steps` the ranks begin to ask whether to contribute: never
    if that is the whole round. `joins`: they have contributed to nothing yet."""
    assert isinstance(run.method, RoundMethod)
    if run.method.answers:
        return 0
    if run.method.round_s:
        return 1
    return -(-steps // 2) if joins else steps


def planned_rounds(run: RunConfig) -> int:
    """After so many commits of fragment 0 the run is finished: `outer_steps`, or the fewer ones
    that hold as many inner steps where rounds grow longer."""
    method = run.method
    if not isinstance(method, RoundMethod) or not method.qsr_alpha:
        return run.outer_steps
    return sum(1 for _ in _lengths(run))


def longest_round(run: RunConfig) -> int:
    """Inner steps of the longest round of the run."""
    assert isinstance(run.method, RoundMethod)
    return max(_lengths(run)) if run.method.qsr_alpha else run.method.inner_steps


def _lengths(run: RunConfig) -> Iterator[int]:
    """Of each round, if none is cut short."""
    step = 0
    while step < run.total_inner_steps:
        steps = round_steps(run, step)
        yield steps
        step += steps
