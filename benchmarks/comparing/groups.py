"""The interface of all groups: the nodes of a run, trained as its method defines.

A method of rounds is a Meetings (in_rounds.py), one that agrees on each step a Group of its own
(per_step.py). Must NOT know a method.
"""

import statistics
import time
from typing import Protocol

import torch

from benchmarks.comparing.node import ComparedNode
from benchmarks.comparing.settings import Setting
from lowcomm.config import CosineSchedule
from lowcomm.data import Batches
from lowcomm.models import Llama


class Group(Protocol):
    """The nodes of a run. Call `make_step` for each step of the run; then `evaluated` is up to
    date."""

    def make_step(self, step: int) -> None:
        """Make inner step `step`, from 0 on, and the method's work that follows it."""
        ...

    @property
    def evaluated(self) -> Llama:
        """The model that the run would return if it ended now."""
        ...

    @property
    def tokens(self) -> int:
        """Number of tokens on which all nodes have trained."""
        ...

    @property
    def waited(self) -> list[float]:
        """For each node, the share of virtual time that it waited."""
        ...

    @property
    def step_s(self) -> float:
        """Median CPU seconds of an inner step of one node, independent of other load on the
        machine."""
        ...

    def close(self) -> None: ...


class Feed:
    """The samples of a run, in the order in which its nodes draw them."""

    def __init__(self, setting: Setting, batches: Batches, *, first_step: int) -> None:
        self._batches, self._rows = batches, setting.data.batch
        self._next = first_step * setting.nodes * self._rows

    def draw(self) -> torch.Tensor:
        """The next batch of one node: int64 [B, T + 1]."""
        samples = range(self._next, self._next + self._rows)
        self._next = samples.stop
        return torch.from_numpy(self._batches.of(samples))


class Pace:
    """The learning rate's schedule, and the CPU seconds of inner steps, in this thread alone."""

    def __init__(self, setting: Setting) -> None:
        wanted = setting.optimizer
        self.schedule = CosineSchedule(wanted.warmup_steps, setting.steps, wanted.lr_final)
        self.taken: list[float] = []

    def train(self, node: ComparedNode, tokens_BT1: torch.Tensor, factor: float) -> None:
        """Make one inner step of a node, and record its CPU time; `factor` scales the learning
        rate."""
        start = time.thread_time()
        node.backward(tokens_BT1)
        node.inner_step(factor)
        self.taken.append(time.thread_time() - start)

    @property
    def step_s(self) -> float:
        return statistics.median(self.taken) if self.taken else 0.0
