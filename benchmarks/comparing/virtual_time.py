"""Virtual time: when nodes of several speeds make their steps, and which nodes are present.

The unit of time is a step of a node at mean speed. Must NOT train.
"""

from dataclasses import dataclass

import numpy as np

from lowcomm.rank_control import fits

SPEEDS = (1.0, 1.0, 2.0, 4.0)
JITTER = 0.1
"""Largest deviation of a step's duration, as a share of its nominal duration."""
CHURN_ROUNDS = 30
"""In so many rounds one node is lost, and another one joins."""
AWAY_ROUNDS = 2
"""Rounds from a loss to the join of the replacement. A node is lost in the middle of a round, and
its replacement is present from the beginning of a round."""


class Clock:
    """The clock of one node. No step begins that would end after the time of the next needed
    result."""

    def __init__(self, speed: float, *, jitter: float, seed: int) -> None:
        self._speed, self._jitter = speed, jitter
        self._random = np.random.default_rng(seed)
        self._now = 0.0
        self._step = self._next_step()
        self.waited = 0.0

    def steps_until(self, time: float) -> int:
        """Make the steps that end by this time, and return their number."""
        steps = 0
        while fits(self._now, self._step, until=time):
            self._now += self._step
            self._step = self._next_step()
            steps += 1
        return steps

    def meet(self, time: float) -> None:
        """Wait until this time."""
        self.waited += max(time - self._now, 0.0)
        self._now = max(self._now, time)

    def _next_step(self) -> float:
        return self._random.uniform(1 - self._jitter, 1 + self._jitter) / self._speed


def clocks(nodes: int, *, unequal: bool, seed: int) -> list[Clock]:
    """Clocks with a mean speed of 1. Equal ones are in lockstep."""
    speeds = [SPEEDS[node % len(SPEEDS)] if unequal else 1.0 for node in range(nodes)]
    mean, jitter = sum(speeds) / nodes, JITTER if unequal else 0.0
    return [
        Clock(speed / mean, jitter=jitter, seed=1000 * seed + node)
        for node, speed in enumerate(speeds)
    ]


@dataclass(frozen=True, slots=True)
class NodeChange:
    """The loss or the join of one node, at a moment of virtual time."""

    time: float
    node: int
    joins: bool


def changes(nodes: int, *, rounds: int, inner_steps: int) -> list[NodeChange]:
    """Changes by time: one loss and one join in each CHURN_ROUNDS rounds, or in all rounds if they
    are fewer."""
    found: list[NodeChange] = []
    for number, first in enumerate(range(min(rounds, CHURN_ROUNDS) // 3, rounds, CHURN_ROUNDS)):
        node = (nodes - 1 - number) % nodes
        found.append(NodeChange((first + 0.5) * inner_steps, node, joins=False))
        if first + AWAY_ROUNDS < rounds:
            found.append(NodeChange(float((first + AWAY_ROUNDS) * inner_steps), node, joins=True))
    return found
