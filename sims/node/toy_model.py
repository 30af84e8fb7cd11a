"""The model that simulated ranks train: one parameter, how they train it, and the arithmetic of its
outer steps. Beside it, a model of signatures.

The shell of a node (node.py) applies it as the core commands. Must NOT know rounds or peers.
"""

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from protocols.types import PeerId, digest_text

PRIME = (1 << 61) - 1

Value = float
"""A parameter, or a difference of two. An int if the model is exact."""


@dataclass(frozen=True, slots=True)
class ToyContribution:
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


STEP_SAMPLES = 2


LINES = (0, 0, 50_000_000, 12_000_000, 1_000_000)
"""Link speeds of a node, bytes per second, one of which is drawn. 0: the node's link was never
full, so its speed is not known."""


LINE_STEPS = 50
"""Inner steps for which a drawn link speed holds."""


@dataclass(frozen=True, slots=True)
class Training:
    """How the ranks of a run train; steps are inner steps."""

    inner_steps: int = 8
    """Inner steps between two contributions to one fragment."""
    fragments: int = 1
    overlap_steps: int = 0
    overlap_max_steps: int = 0
    discards_overlap: bool = False
    """If True, a counted result replaces the steps that the ranks have made since the contribution;
    else these steps are kept."""
    void_one_in: int = 0
    """One contribution in so many is rejected: it cannot be averaged. 0: none."""
    gossip: bool = False
    """In each round a node exchanges with one other node, and sends its parameters instead of their
    change."""
    answers: bool = False
    """Ranks contribute early, with the steps that they have made, as soon as other peers wait."""
    extremes: bool = False
    """Names, reasons and contributions are as large as the limits allow
    (simulator/limit_values.py)."""
    checks: bool = False
    """Peers check the owners of parts (owner_checks.py)."""
    certified: bool = False
    """Peers connect with certificates that the log admits, as in an encrypted run."""
    lines: int = 0
    """Seed from which the nodes' link speeds are drawn; 0: no node knows its speed."""

    def __post_init__(self) -> None:
        # As in lowcomm/training/round_schedule.py: else a fragment is contributed late, and the
        # ranks draw more than `interval_samples`.
        assert self.overlap_max_steps <= self.inner_steps, "a result before the next contribution"

    @property
    def interval_samples(self) -> int:
        """Number of samples that the ranks draw between two results of the anchor, and from the
        contribution to the first of these until its result."""
        return (self.inner_steps + self.overlap_max_steps) * STEP_SAMPLES

    @property
    def slot_steps(self) -> int:
        """Inner steps between two boundaries."""
        return max(1, self.inner_steps // self.fragments)

    def line(self, name: str, step: int) -> int:
        """The node's link speed as it knows it at this inner step, bytes per second; 0: not
        known."""
        source = random.Random(f"{self.lines} {name} {step // LINE_STEPS}")  # noqa: S311
        return source.choice(LINES) if self.lines else 0


def toy_signature(key: str, content: bytes) -> bytes:
    """The signature by this key, of 64 hex digits: both halves of it are the same. Only the holder
    makes one."""
    return hashlib.sha512(bytes.fromhex(key) + content).digest()


def key_named(name: str) -> bytes:
    """The key of this name: both halves of the model are the same."""
    return hashlib.sha256(name.encode()).digest()


@dataclass(frozen=True, slots=True)
class ToySignatures:
    """Modelled signatures of one peer, for its core. Liars of the simulator have no other keys
    either."""

    peer: PeerId | None = None
    """None: signatures are only checked."""

    def sign(self, statement: bytes) -> bytes:
        return toy_signature(key_named(self.peer).hex(), statement) if self.peer else b""

    def verify(self, key_hex: str, statement: bytes, signature: bytes) -> bool:
        return signature == toy_signature(key_hex, statement)
