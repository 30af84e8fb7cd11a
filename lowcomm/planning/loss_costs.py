"""The cost in loss of each method, from the comparison of methods (docs/methods-compared.md).

Held-out loss at equal tokens, above that of all-reduce: mean of three seeds and its standard error.
Four nodes trained a model of 857,216 parameters with H = 30, after a warm start. Must NOT have a
figure that is not in that document.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossCost:
    """The loss of a method is all-reduce's times 1 + `above`, with a standard error of `error`."""

    above: float
    error: float


LOSS_COSTS: Mapping[str, LossCost] = {
    "allreduce": LossCost(0.0, 0.0),
    "diloco": LossCost(0.0178, 0.0027),
    "local_sgd": LossCost(0.0270, 0.0031),
    "streaming_diloco fp4": LossCost(0.0270, 0.0029),
    "eager_diloco": LossCost(0.0414, 0.0042),
    "decoupled_diloco": LossCost(0.0137, 0.0021),
    "sparseloco": LossCost(0.0469, 0.0035),
    "noloco": LossCost(0.0349, 0.0031),
    "flexdemo full": LossCost(0.0185, 0.0022),
    "flexdemo demo": LossCost(0.0094, 0.0012),
    "flexdemo random": LossCost(0.0318, 0.0040),
    "flexdemo striding": LossCost(0.0640, 0.0045),
}
"""By the names of the document's rows."""
CONDITIONS = "4 nodes, 0.86 M parameters, 30 inner steps in a round, after a warm start"
"""The conditions of the comparison, for people."""
