"""The model that simulated ranks train: one parameter, and the arithmetic of its outer steps.

The shell of a node (node.py) applies it as the core commands. Must NOT know rounds or peers.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from protocols.types import PeerId, digest_text

PRIME = (1 << 61) - 1

Value = float
"""A parameter, or a difference of two. An int if the model is exact."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """An encoded contribution: the inner steps [first, last) of its peer, numbered through all
    incarnations, which add up to `delta`."""

    peer: PeerId
    fragment: int
    delta: int
    first: int
    last: int
    expected: int
    """The sum of these steps, added up one by one."""
    sent: int
    """The value that other peers received: the delta, or in a gossip run the parameter."""
    base_round: int = 0
    """The round of the outer state to which the ranks' parameters were last moved."""


class Model(Protocol):
    """One kind of training. Another model changes the parameters, not which peers are counted."""

    exact: bool
    """Sums do not depend on their order, so the checkers can add up all steps."""

    def initial(self, source: random.Random) -> Value:
        """The initial parameter of a run."""
        ...

    def move(self, name: str, local: Value, source: random.Random) -> Value:
        """The change of the parameter by one inner step of the peer with this name."""
        ...

    def fold(self, value: Value) -> Value:
        """The same value in the range of the model."""
        ...

    def mean(self, terms: Iterable[tuple[int, Value]]) -> Value:
        """The weighted mean of (weight, value) terms, added in this order."""
        ...


class Modular:
    """Integers modulo a prime. Inner steps are random, and rounding never hides a step that was
    lost, counted twice or mixed up."""

    exact = True

    def initial(self, source: random.Random) -> Value:
        return source.randrange(PRIME)

    def move(self, name: str, local: Value, source: random.Random) -> Value:
        return source.randrange(1 << 20)

    def fold(self, value: Value) -> Value:
        return value % PRIME

    def mean(self, terms: Iterable[tuple[int, Value]]) -> Value:
        total: Value = 0
        weights = 0
        for weight, value in terms:
            total, weights = total + weight * value, weights + weight
        return total * pow(weights, -1, PRIME) % PRIME


def state_digest(outer: Value) -> str:
    """Digest of a state, which here is one number."""
    return digest_text(str(outer))
