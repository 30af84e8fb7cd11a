"""The forecast of a method: bytes, time and memory of a node, without training.

Bytes and memory are those of the code that will send and allocate them (methods, codecs, daemon).
The time follows from the bytes, the line and the steps that go on meanwhile. Must NOT measure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowcomm.methods.base import Parameter, RoundMethod, StepMethod
from lowcomm.outer_state.step_replica import needed_for_steps
from lowcomm.planning.model_shapes import layout_of
from lowcomm.planning.overlap import Transfer, compute_share
from lowcomm.planning.traffic import NodeTraffic, traffic_of
from lowcomm.planning.variants import Variant
from lowcomm.startup.memory_budget import needed_bytes
from lowcomm.validation import check_values
from protocols.types import ConfigError

ROUND_TRIPS = 3.0
"""Round trips of a round beyond the time of its bytes: to an owner and back (1), the report to the
leader and the entry in the log (2). docs/measurements.md has 3.03 in virtual time."""
STEP_TRIPS = 0.5
"""The same for a step of a per-step method, in which payloads travel one way."""
PAYLOAD_SHARE = 0.965
"""The share of a full line that is payload; the rest is headers (docs/wan.md)."""
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
class NodeLine:
    """The line of each node, which all its connections share."""

    rate_bps: float
    """Bits a second in each direction, headers included."""
    round_trip_s: float = 0.0

    def __post_init__(self) -> None:
        check_values("line", self, positive=("rate_bps",), not_negative=("round_trip_s",))


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
    share = share_on(method, traffic, line, step_s=work.step_s)
    memory = (
        needed_bytes(layout, method, peers=work.nodes, joins=True)
        if isinstance(method, RoundMethod)
        else needed_for_steps(method, layout, peers_min=work.nodes)
    )
    return Forecast(
        name=variant.name,
        steps=traffic.round_steps,
        sent_bytes=traffic.sent_bytes,
        burst_bytes=traffic.window_bytes,
        round_s=traffic.round_steps * work.step_s / share,
        share=share,
        enough_bps=_rate_for_share(
            method, traffic, work, round_trip_s=line.round_trip_s, wanted=wanted_share
        ),
        memory_bytes=memory,
        loss_above=None if cost is None else cost.above,
        loss_error=None if cost is None else cost.error,
    )


def share_on(
    method: RoundMethod | StepMethod, traffic: NodeTraffic, line: NodeLine, *, step_s: float
) -> float:
    """The share of the time in which a node computes. `traffic`: the method's."""
    return compute_share(
        _transfers(method, traffic, line), steps=traffic.round_steps, step_s=step_s
    )


def _transfers(
    method: RoundMethod | StepMethod, traffic: NodeTraffic, line: NodeLine
) -> list[Transfer]:
    """The transfers of a round: of each fragment at the step after which it is contributed
    (lowcomm/training/round_schedule.py)."""
    trips = ROUND_TRIPS if isinstance(method, RoundMethod) else STEP_TRIPS
    count = len(traffic.sent)
    found: list[Transfer] = []
    for interval in range(count):
        ready = (interval + 1) * traffic.round_steps // count
        sent = traffic.sent[(interval + 1) % count]
        found.append(
            Transfer(
                ready=ready,
                needed=ready + traffic.hidden_steps,
                line_s=8 * sent / (PAYLOAD_SHARE * line.rate_bps),
                delay_s=trips * line.round_trip_s,
            )
        )
    return found


def _rate_for_share(
    method: RoundMethod | StepMethod,
    traffic: NodeTraffic,
    work: Workload,
    *,
    round_trip_s: float,
    wanted: float,
) -> float | None:
    """The lowest rate with at least the wanted share, in bits a second."""

    def is_enough(rate_bps: float) -> bool:
        line = NodeLine(rate_bps=rate_bps, round_trip_s=round_trip_s)
        return share_on(method, traffic, line, step_s=work.step_s) >= wanted

    low, high = RATE_BPS
    if not is_enough(high):
        return None
    while high / low > RATE_FACTOR:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
