"""DeMo (arXiv:2411.19870) and FlexDeMo (arXiv:2502.06728): in every step each node sends the
fast-moving part of its momentum, and all nodes step by the mean. docs/methods.md has the
equations.

Must NOT import torch or another method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lowcomm.methods.base import TABLE, Parameter, StepMethod
from lowcomm.replicators.payload_mean import PayloadMean, tensors_of
from lowcomm.replicators.replicators import Demo, Full, Random, Replicator, Striding, Values, Wire
from lowcomm.validation import check_values
from protocols.types import ConfigError

CHUNKS = (8, 16, 32, 64)
"""Sizes of a tile's side: powers of two, because the cosine transform halves them, and a place
among 64 x 64 values takes 12 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexDeMoMethod(StepMethod):
    """See `lowcomm.methods.base.StepMethod`."""

    name: Literal["flexdemo"] = "flexdemo"
    replicator: Literal["demo", "random", "striding", "full"] = "demo"
    """The part of its momentum that a node sends. `demo`: the largest cosine coefficients.
    `random`: values by chance, the same ones on all nodes. `striding`: values in turn. `full`: the
    whole gradient; there is no momentum."""
    chunk: int = 64
    """demo: matrices are transformed in tiles of chunk x chunk values, vectors in tiles of chunk;
    8, 16, 32 or 64. Ranks compress `chunk` rows together, so it is part of every layout."""
    topk: int = 32
    """demo: the number of coefficients that are sent of each tile; of a smaller tile all are
    sent."""
    one_in: int = 16
    """random and striding: one value in this many is sent."""
    momentum: float = 0.999
    """The share of a node's own momentum that remains after a step (beta)."""
    values: Values = "bf16"
    """The encoding of the values that are sent: 2 bytes, 4 bytes (`fp32`), or one bit (`sign`,
    without magnitudes). fp16 is not possible: momentum holds learning rate x gradient, which is
    often below its range."""
    mean: Literal["contributors", "world"] = "contributors"
    """demo: a coefficient's mean is over the nodes that sent it, or over all nodes."""
    sign: Literal["after", "before", "none"] = "after"
    """Where the sign is taken: of the mean update (`after`); of the values that each node sends,
    which are then one bit each (`before`); or nowhere (`none`)."""
    step: Literal["sgd", "adamw"] = "sgd"
    """The model's step along the update. With adamw its moments are part of the shared state."""

    def __post_init__(self) -> None:
        StepMethod.__post_init__(self)
        check_values(TABLE, self, positive=("topk", "one_in"))
        if self.chunk not in CHUNKS:
            raise ConfigError(
                f"{TABLE}.chunk must be one of {', '.join(map(str, CHUNKS))}, got {self.chunk}: "
                f"the nearest is {min(CHUNKS, key=lambda size: abs(size - self.chunk))}"
            )
        if self.topk > self.chunk**2:
            raise ConfigError(
                f"{TABLE}.topk is {self.topk}, but a tile of {self.chunk} x {self.chunk} has "
                f"{self.chunk**2} coefficients: set at most that"
            )
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"{TABLE}.momentum must be in [0, 1), got {self.momentum}")
        if self.sign == "before" and self.values != "sign":
            raise ConfigError(
                f'{TABLE}.sign is "before", so that a value is one bit, but values is '
                f'"{self.values}": set values = "sign"'
            )
        if self.sign == "none" and self.values == "sign":
            raise ConfigError(
                f'{TABLE}.sign is "none", but with values = "sign" only signs travel: set '
                'sign = "before", or values = "bf16"'
            )

    @property
    def state_arrays(self) -> tuple[str, ...]:
        moments = ("exp_avg", "exp_avg_sq") if self.step == "adamw" else ()
        return ("parameters", *moments)

    @property
    def update_has_rate(self) -> bool:
        """True if the mean is of momentum, which holds learning rate x gradient: SGD must not
        multiply by the rate once more."""
        return self.sign == "none" and self.replicator != "full"

    def make_exchange(self, parameters: Sequence[Parameter], *, seed: int) -> PayloadMean:
        made = self._replicator()
        tensors = tensors_of([each.shape for each in parameters], made, self.chunk)
        return PayloadMean(made, tensors, seed=seed, contributors=self.mean == "contributors")

    def _replicator(self) -> Replicator:
        wire = Wire(self.values)
        match self.replicator:
            case "demo":
                return Demo(wire, topk=self.topk)
            case "random":
                return Random(wire, one_in=self.one_in)
            case "striding":
                return Striding(wire, one_in=self.one_in)
            case "full":
                return Full(wire)
