"""What simulated ranks train: one parameter, and the arithmetic that its outer steps are made of.

The shell of a node (node.py) does with it what the core says. Must NOT know rounds or peers.
"""

import random
from collections.abc import Iterable
from typing import Protocol

from protocols.types.ids import digest_text

PRIME = (1 << 61) - 1

Value = float
"""A parameter or a difference of two. An int where the model is exact."""


class Model(Protocol):
    """One kind of training. A change of it is a change of what is trained, not of who counts."""

    exact: bool
    """Sums do not depend on their order, so that the checkers can add up every step."""

    def initial(self, source: random.Random) -> Value:
        """The parameter that a run begins with."""
        ...

    def move(self, name: str, local: Value, source: random.Random) -> Value:
        """By how much one inner step moves the parameter of the peer with this name."""
        ...

    def fold(self, value: Value) -> Value:
        """The same value in the range of the model."""
        ...

    def mean(self, terms: Iterable[tuple[int, Value]]) -> Value:
        """Of (weight, value), in this order."""
        ...


class Modular:
    """Numbers modulo a prime: inner steps are drawn by chance, and what was lost, counted twice or
    mixed is never hidden by rounding."""

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
    """Of a state: here it is one number."""
    return digest_text(str(outer))
