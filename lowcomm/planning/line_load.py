"""The load of a method on a node's line, and the share of the time that it leaves for computing.

Parts, owners and pieces are those of the protocol and the shell (protocols/state, peers/exchange).
Must NOT measure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowcomm.methods.base import RoundMethod, StepMethod
from lowcomm.outer_state.fragment_layout import fragment_elements
from lowcomm.planning.overlap import Transfer, compute_share
from lowcomm.planning.sent_bytes import traffic_of
from lowcomm.validation import check_values
from peers.exchange import PIECE_ELEMENTS
from protocols.state import cut_parts
from protocols.types import PeerId, TensorSpec

ROUND_TRIPS = 3.0
"""Round trips of a round beyond the time of its bytes: to an owner and back (1), the report to the
leader and the entry in the log (2). docs/measurements.md has 3.03 in virtual time."""
STEP_TRIPS = 0.5
"""The same for a step of a per-step method, in which payloads travel one way."""
PAYLOAD_SHARE = 0.965
"""The share of a full line that is payload; the rest is headers (docs/wan.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """The line of each node, which all its connections share."""

    rate_bps: float
    """Bits a second in each direction, headers included."""
    round_trip_s: float = 0.0

    def __post_init__(self) -> None:
        check_values("line", self, positive=("rate_bps",), not_negative=("round_trip_s",))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineLoad:
    """A method's exchanges."""

    steps: int
    """Inner steps of a round; 1 for a per-step method."""
    hidden_steps: int
    """Inner steps that go on while a fragment is exchanged."""
    busy: tuple[int, ...]
    """By fragment: bytes of payload that the exchange puts on the line of the busiest node, in the
    direction and the order that take longest."""
    round_trips: float

    def share_on(self, line: NodeLine, *, step_s: float) -> float:
        """The share of the time in which a node computes. A fragment is contributed after the step
        of lowcomm/training/round_schedule.py, the first one at the end of the round."""
        count = len(self.busy)
        found: list[Transfer] = []
        for interval in range(count):
            ready = (interval + 1) * self.steps // count
            payload_bits = 8 * self.busy[(interval + 1) % count]
            found.append(
                Transfer(
                    ready=ready,
                    needed=ready + self.hidden_steps,
                    line_s=payload_bits / (PAYLOAD_SHARE * line.rate_bps),
                    delay_s=self.round_trips * line.round_trip_s,
                )
            )
        return compute_share(found, steps=self.steps, step_s=step_s)


def load_of(
    method: RoundMethod | StepMethod, layout: Sequence[TensorSpec], *, nodes: int
) -> LineLoad:
    """The load of a method. `layout`: of the model. Raises LayoutError."""
    traffic = traffic_of(method, layout, nodes=nodes)
    busy, round_trips = traffic.sent, STEP_TRIPS
    if isinstance(method, RoundMethod):
        sizes, round_trips = fragment_elements(layout), ROUND_TRIPS
        busy = tuple(busy_bytes(method, each, nodes=nodes) for each in sizes)
    return LineLoad(
        steps=traffic.round_steps,
        hidden_steps=traffic.hidden_steps,
        busy=busy,
        round_trips=round_trips,
    )


def busy_bytes(method: RoundMethod, elements: int, *, nodes: int) -> int:
    """Bytes on the line of the busiest node in an exchange of one fragment.

    Of a small fragment only some nodes own a part. All slices of a part go to its owner, and then
    its mean, or by gather all the slices of the others, to each node. The two overlap as far as
    the part has several pieces.
    """
    payload, mean, others = method.codec.encoded_bytes(elements), method.mean_codec, nodes - 1
    if not method.replicas_equal:
        return payload
    peers = [PeerId(str(number)) for number in range(nodes)]
    owners = len(cut_parts(elements, peers, grain=method.codec.grain).owners)
    result = others * payload if mean is None else mean.encoded_bytes(elements)
    one_after_other = others * (payload + result) / owners
    received = (others * payload + (owners - 1) * result) / owners
    sent = ((owners - 1) * payload + others * result) / owners
    at_once = max(received, sent)
    pieces = -(-elements // (owners * PIECE_ELEMENTS))
    return round(at_once + (one_after_other - at_once) / pieces)
