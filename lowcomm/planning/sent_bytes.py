"""The bytes that a method sends, counted from its codecs, and the time that they take on a line.

Payload only, of one node. Must NOT measure anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowcomm.methods import AllReduceMethod, FlexDeMoMethod, Parameter, RoundMethod, StepMethod
from lowcomm.outer_state import fragment_elements
from protocols.types import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTraffic:
    """Bytes of one node while each fragment is exchanged once. Tuples are by fragment."""

    sent: tuple[int, ...]
    """Bytes by lowcomm's daemons: they sum in parts, one a peer; values that cannot be summed go to
    each peer."""
    least: tuple[int, ...]
    """Bytes by the best known exchange: a ring for values that can be summed; else one published
    copy."""
    line: tuple[int, ...]
    """Bytes in the busier direction of the node's line, with the best exchange."""
    round_steps: int = 1
    hidden_steps: int = 0
    """Number of inner steps that go on while a fragment is exchanged."""

    @property
    def sent_bytes(self) -> int:
        return sum(self.sent)

    @property
    def least_bytes(self) -> int:
        return sum(self.least)

    @property
    def window_bytes(self) -> int:
        """The most bytes that lowcomm's daemons send in the time of one inner step, on a fast
        enough line: all of one fragment's exchange, since it is not spread over the steps that go
        on meanwhile. No two fragments are contributed after the same step."""
        return max(self.sent)

    def bytes_of(self, steps: int) -> tuple[float, float]:
        """(sent, least) bytes in so many inner steps."""
        rounds = steps / self.round_steps
        return rounds * self.sent_bytes, rounds * self.least_bytes

    def step_seconds(self, *, step_s: float, rate_bps: float) -> float:
        """Seconds of an inner step with its share of the exchanges, on a line of this rate each
        way."""
        moving_s = [8 * carried / rate_bps for carried in self.line]
        standing_s = sum(max(each - self.hidden_steps * step_s, 0.0) for each in moving_s)
        return step_s + standing_s / self.round_steps


def traffic_of(
    method: RoundMethod | StepMethod, layout: Sequence[TensorSpec], *, nodes: int
) -> NodeTraffic:
    """Count the bytes of a method. `layout`: of the model. Raises LayoutError."""
    others, fragments = nodes - 1, fragment_elements(layout)
    if isinstance(method, StepMethod):
        parameters = [Parameter(tensor.name, tensor.shape) for tensor in layout]
        payload = method.make_exchange(parameters, seed=0).payload_bytes
        sent, ring = others * payload, 2 * others * payload // nodes
        if _can_be_summed(method):
            return NodeTraffic(sent=(sent,), least=(ring,), line=(ring,))
        return NodeTraffic(sent=(sent,), least=(payload,), line=(sent,))
    payloads = [method.codec.encoded_bytes(elements) for elements in fragments]
    mean = method.mean_codec
    if not method.replicas_equal:
        sent = least = tuple(payloads)  # To one partner; a node without one sends nothing.
    elif mean is None:
        sent = tuple(others * payload for payload in payloads)
        least = tuple(payloads)
    else:
        both = zip(payloads, map(mean.encoded_bytes, fragments), strict=True)
        sent = tuple(others * (payload + result) // nodes for payload, result in both)
        least = sent
    return NodeTraffic(
        sent=sent,
        least=least,
        line=sent,
        round_steps=method.inner_steps,
        hidden_steps=method.overlap_steps,
    )


def _can_be_summed(method: StepMethod) -> bool:
    """Do all nodes send the same elements, in an encoding that a sum of values can have too?"""
    if isinstance(method, FlexDeMoMethod):
        return method.replicator != "demo" and method.values != "sign"
    return isinstance(method, AllReduceMethod)
