"""Quadratic loss, and one of three peers that misses every second round: the real core decides who
counts, and the model's path is the exact solution.

With loss a_i (x - c_i)^2 / 2, H inner steps of size s take x to c_i + q_i (x - c_i), where
q_i = (1 - s a_i)^H. The outer step subtracts the mean of base - x, weighted by steps. A round that
misses the third peer: X' = X - (d_1 + d_2) / 2 with d_i = (1 - q_i) (X - c_i); its own parameter y
is rebased to y + X' - X. The next round counts all, the third one with both intervals, so twice as
heavy. Both together are X'' = m X + k, of which every second state is known in closed form:
X_2n = X* + m^n (X_0 - X*), with X* = k / (1 - m).
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.rounds.fragment_rounds import FragmentRounds
from sims.checkers import World
from sims.mutations.rounds import MUTANTS
from sims.node.node import Node
from sims.node.toy_model import Training, Value

INNER_STEPS, ROUNDS, INITIAL = 8, 12, 5.0
TRAINING = Training(inner_steps=INNER_STEPS)
STEP = 0.03
CURVATURE = {"p0": 0.5, "p1": 1.0, "p2": 2.0}
OPTIMUM = {"p0": -1.0, "p1": 2.0, "p2": 7.0}
LATE = "p2"


class Quadratic:
    """Each peer has a loss of its own; its inner steps are plain gradient descent."""

    exact = False

    def initial(self, source: random.Random) -> Value:
        return INITIAL

    def move(self, name: str, local: Value, source: random.Random) -> Value:
        return -STEP * CURVATURE[name] * (local - OPTIMUM[name])

    def fold(self, value: Value) -> Value:
        return value

    def mean(self, terms: Iterable[tuple[int, Value]]) -> Value:
        pairs = list(terms)
        return sum(weight * value for weight, value in pairs) / sum(weight for weight, _ in pairs)


@dataclass
class Path:
    """What became of the outer parameter."""

    states: dict[int, Value] = field(default_factory=dict[int, Value])
    """By round, as the first peer applied it."""
    counted: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])
    """By round: whose steps, and how many."""


class Bumpy(World):
    """In every odd round the slices of one peer are on their way for longer than the others wait;
    nothing else fails."""

    def __init__(self) -> None:
        self.path = Path()
        self._outer: dict[str, Value] = {}
        super().__init__(3, peers=3, outer_steps=ROUNDS, training=TRAINING, model=Quadratic())
        self.network.delay_s, self.network.jitter = 0.01, 0.0

    def record(self, node: Node, event: v.Event, value: Value, out: Sequence[c.Command]) -> None:
        name = node.me.name
        if isinstance(event, v.Encoded) and name == LATE and event.round % 2:
            for other in self.live:
                line = self.network.line(node.peer, other.peer)
                line.slow_until, line.slow_s = (
                    self.clock.now + 0.5,
                    self.settings.rules.reduction_timeout_s + 0.5,
                )
        if isinstance(event, v.RoundApplied):
            before = self.path.states.setdefault(event.stamp.round, node.states.outers[0])
            assert before == node.states.outers[0], "all hold the same bits"


def play() -> Path:
    world = Bumpy()
    world.run(until_s=400.0)
    assert world.finished
    names = {peer: node.me.name for peer, node in world.nodes.items()}
    for (_, _, round_), commit in world.checkers.commits.items():
        world.path.counted[round_] = {names[x.peer]: x.steps for x in commit.contributors}
    return world.path


def exact_path() -> list[float]:
    """The closed form for even rounds; for odd ones, one round on from there."""
    q = {name: (1 - STEP * a) ** INNER_STEPS for name, a in CURVATURE.items()}
    # Everything is affine in X: (slope, constant) of a round without the late one,
    first = [n for n in q if n != LATE]
    slope = sum(q[n] for n in first) / 2
    constant = sum((1 - q[n]) * OPTIMUM[n] for n in first) / 2
    # of the late one's parameter after its interval and the rebase, y = u X + w,
    u = q[LATE] + slope - 1
    w = (1 - q[LATE]) * OPTIMUM[LATE] + constant
    # and of the round that counts all: weights 1, 1 and 2.
    m = (sum(q[n] for n in first) * slope + 2 * q[LATE] * u) / 4
    k = sum(q[n] * constant + (1 - q[n]) * OPTIMUM[n] for n in first)
    k = (k + 2 * (q[LATE] * w + (1 - q[LATE]) * OPTIMUM[LATE])) / 4
    fixed = k / (1 - m)
    evens = [fixed + m**n * (INITIAL - fixed) for n in range(ROUNDS // 2 + 1)]
    return [x for even in evens for x in (even, slope * even + constant)][: ROUNDS + 1]


def test_the_path_is_the_exact_solution() -> None:
    path = play()
    everybody = {"p0": INNER_STEPS, "p1": INNER_STEPS, LATE: 2 * INNER_STEPS}
    without = {"p0": INNER_STEPS, "p1": INNER_STEPS}
    assert path.counted == {n: without if n % 2 else everybody for n in range(1, ROUNDS + 1)}
    exact = exact_path()
    assert [path.states[n] for n in range(1, ROUNDS + 1)] == pytest.approx(exact[1:], abs=1e-6)
    assert abs(exact[1] - exact[2]) > 0.4, "the late one pulls elsewhere than the others"


def test_without_the_rebase_the_path_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (mutant,) = [known for known in MUTANTS if known.name == "no-rebase"]
    monkeypatch.setattr(FragmentRounds, "applied", mutant.edit.changed())
    path, exact = play(), exact_path()
    assert path.states[1] == pytest.approx(exact[1], abs=1e-6), "nothing is lost before"
    assert abs(path.states[2] - exact[2]) > 0.1
