"""The time of training beside transfers, and the share of it in which nodes compute.

Training makes progress along its inner steps. A transfer becomes ready at one place of them, waits
until the line is free, and is needed at a later place, where training stands until it has arrived.
It is the model behind Table 4 of Streaming DiLoCo (arXiv:2501.18512), with a transfer for each
layer. Must NOT know methods, bytes or rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WARM_PERIODS = 3
"""Periods before those that count: until then waits of one period still change those of the next.
"""
COUNTED_PERIODS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A transfer that each period repeats. Places are in inner steps since the period's begin."""

    ready: float
    """The place at which it can be sent."""
    needed: float
    """The place that training does not pass before it has arrived: not before `ready`, maybe in a
    later period."""
    line_s: float
    """Seconds for which it occupies the line, on which transfers follow each other in their order.
    """
    delay_s: float = 0.0
    """Seconds from its last byte on the line to its arrival."""

    def __post_init__(self) -> None:
        assert self.ready <= self.needed, "needed before it can be sent"


def period_seconds(transfers: Sequence[Transfer], *, steps: float, step_s: float) -> float:
    """Mean seconds of a period of so many inner steps, each of `step_s` seconds, once waits repeat
    themselves."""
    begin, end = WARM_PERIODS * steps, (WARM_PERIODS + COUNTED_PERIODS) * steps
    moments = sorted(
        (period * steps + place, is_needed, number, period)
        for period in range(WARM_PERIODS + COUNTED_PERIODS)
        for number, transfer in enumerate(transfers)
        for is_needed, place in ((False, transfer.ready), (True, transfer.needed))
    )
    arrivals: dict[tuple[int, int], float] = {}
    line_free_s = waited_s = counted_s = 0.0
    for place, is_needed, number, period in moments:
        if place > end:
            break
        now_s = place * step_s + waited_s
        if not is_needed:
            line_free_s = max(line_free_s, now_s) + transfers[number].line_s
            arrivals[number, period] = line_free_s + transfers[number].delay_s
            continue
        wait_s = max(arrivals[number, period] - now_s, 0.0)
        waited_s += wait_s
        if place > begin:
            counted_s += wait_s
    return steps * step_s + counted_s / COUNTED_PERIODS


def compute_share(transfers: Sequence[Transfer], *, steps: float, step_s: float) -> float:
    """The share of its time in which a node computes, in (0, 1]."""
    return steps * step_s / period_seconds(transfers, steps=steps, step_s=step_s)
