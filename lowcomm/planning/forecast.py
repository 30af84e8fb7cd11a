"""The forecast of a method: bytes, time and memory of a node, without training.

Bytes and memory are those of the code that will send and allocate them (methods, codecs, daemon).
The time follows from the bytes, the line and the steps that go on meanwhile. Must NOT measure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowcomm.methods.base import Parameter, RoundMethod
from lowcomm.outer_state.step_replica import needed_for_steps
from lowcomm.planning.line_load import LineLoad, NodeLine, load_of
from lowcomm.planning.model_shapes import layout_of
from lowcomm.planning.sent_bytes import traffic_of
from lowcomm.planning.variants import Variant
from lowcomm.startup.memory_budget import needed_bytes
from protocols.types import ConfigError

RATE_BPS = (1e3, 1e14)
"""Rates among which `rate_for_share` searches, in bits a second."""
RATE_FACTOR = 1.005
"""Precision of that search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The training of a run."""

    parameters: Sequence[Parameter]
    nodes: int
    step_s: float
    """Seconds of an inner step of a node without any exchange."""

    def __post_init__(self) -> None:
        if self.nodes < 2:
            raise ConfigError(f"a plan for {self.nodes} nodes: give 2 or more, one exchanges none")
        if not 0 < self.step_s < math.inf:
            raise ConfigError(f"a step of {self.step_s:g} s: give a time above 0")

    @property
    def params(self) -> int:
        return sum(each.elements for each in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The figures of a node that trains by one method. Bytes are payload."""

    name: str
    steps: int
    """Inner steps of a round; 1 for a per-step method."""
    sent_bytes: int
    """Sent in a round, all fragments together."""
    burst_bytes: int
    """Sent at once: the largest fragment."""
    round_s: float
    """Seconds of a round, its inner steps included."""
    share: float
    """The share of the time in which the node computes."""
    enough_bps: float | None
    """The rate of the line with which that share is as asked; None: no rate is enough, because the
    round trip takes too long."""
    memory_bytes: int
    """The daemon's memory at most, with that which it shares with its ranks."""
    loss_above: float | None
    """Held-out loss above all-reduce's in the comparison; None: not compared."""
    loss_error: float | None


def forecast(variant: Variant, work: Workload, line: NodeLine, *, wanted_share: float) -> Forecast:
    """The forecast of one method. Raises ConfigError if it cannot divide this model."""
    method, cost = variant.method, variant.cost
    layout = layout_of(work.parameters, method)
    traffic = traffic_of(method, layout, nodes=work.nodes)
    load = load_of(method, layout, nodes=work.nodes)
    share = load.share_on(line, step_s=work.step_s)
    memory = (
        needed_bytes(layout, method, peers=work.nodes, joins=True)
        if isinstance(method, RoundMethod)
        else needed_for_steps(method, layout, peers_min=work.nodes)
    )
    return Forecast(
        name=variant.name,
        steps=load.steps,
        sent_bytes=traffic.sent_bytes,
        burst_bytes=traffic.window_bytes,
        round_s=load.steps * work.step_s / share,
        share=share,
        enough_bps=_rate_for_share(load, work, round_trip_s=line.round_trip_s, wanted=wanted_share),
        memory_bytes=memory,
        loss_above=None if cost is None else cost.above,
        loss_error=None if cost is None else cost.error,
    )


def _rate_for_share(
    load: LineLoad, work: Workload, *, round_trip_s: float, wanted: float
) -> float | None:
    """The lowest rate with at least the wanted share, in bits a second."""

    def is_enough(rate_bps: float) -> bool:
        line = NodeLine(rate_bps=rate_bps, round_trip_s=round_trip_s)
        return load.share_on(line, step_s=work.step_s) >= wanted

    low, high = RATE_BPS
    if not is_enough(high):
        return None
    while high / low > RATE_FACTOR:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
