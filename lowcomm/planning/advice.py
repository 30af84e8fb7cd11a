"""The settings that a plan advises: the least cost in loss among the methods that suit the nodes.

Must NOT estimate: it chooses among forecasts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowcomm.methods.base import RoundMethod
from lowcomm.planning.forecast import Forecast, Workload, forecast
from lowcomm.planning.line_load import NodeLine
from lowcomm.planning.variants import Variant
from protocols.types import ConfigError

LONGER = (2, 4, 8, 16)
"""Rounds are tried so many times as long as in the comparison: up to 480 inner steps, about the 500
of DiLoCo's paper."""
MEMORY_TIMES = 4
"""If the nodes' memory is not known, a method suits them that needs at most so many times the
memory of the method that needs least."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The variant to use, its forecast, and the reason for people."""

    variant: Variant
    forecast: Forecast
    why: str


@dataclass(frozen=True, slots=True)
class _Choice:
    """A variant, and its forecast."""

    variant: Variant
    found: Forecast
    loss: float
    """The compared method's loss above all-reduce's."""


def advise(
    variants: Sequence[Variant],
    forecasts: Sequence[Forecast],
    work: Workload,
    line: NodeLine,
    *,
    wanted_share: float,
    memory_bytes: float = 0.0,
) -> Advice:
    """The method with the lowest loss that fits into the memory and computes for the wanted share
    of the time. If there is none, rounds are made longer until there is one; if that does not help,
    the method with the highest share. `forecasts`: of the variants, in their order. `memory_bytes`:
    what a node has for its daemon; 0: not known. Raises ConfigError if no method fits."""
    compared = [
        _Choice(variant, found, variant.cost.above)
        for variant, found in zip(variants, forecasts, strict=True)
        if variant.cost is not None
    ]
    compared = _fitting(compared, memory_bytes)
    wanted = f"{wanted_share:.0%} of the time"
    suiting = [each for each in compared if each.found.share >= wanted_share]
    if suiting:
        return _advice(
            min(suiting, key=lambda each: each.loss),
            f"of {len(compared)} methods that fit into the memory {len(suiting)} would compute for "
            f"at least {wanted}; of those, this one had the lowest loss in the comparison",
        )
    tried = list(compared)
    for factor in LONGER:
        longer = [
            _lengthened(each, factor, work, line, wanted_share=wanted_share)
            for each in compared
            if isinstance(each.variant.method, RoundMethod)
        ]
        suiting = [each for each in longer if each.found.share >= wanted_share]
        if suiting:
            return _advice(
                min(suiting, key=lambda each: each.loss),
                f"no method would compute for {wanted} with the rounds of the comparison. With "
                f"{factor} times as many inner steps this one would; its loss was not measured so",
            )
        tried += longer
    best = max(tried, key=lambda each: each.found.share)
    return _advice(
        best,
        f"no method would compute for {wanted} on this line, even with rounds {LONGER[-1]} times "
        f"as long as in the comparison. This one comes nearest",
    )


def _fitting(choices: Sequence[_Choice], memory_bytes: float) -> list[_Choice]:
    least = min(each.found.memory_bytes for each in choices)
    limit = memory_bytes or MEMORY_TIMES * least
    if least > limit:
        raise ConfigError(
            f"no method's daemon fits into {limit / 2**30:.2f} GiB: the least that one needs is "
            f"{least / 2**30:.2f} GiB"
        )
    return [each for each in choices if each.found.memory_bytes <= limit]


def _advice(choice: _Choice, why: str) -> Advice:
    return Advice(choice.variant, choice.found, why)


def _lengthened(
    choice: _Choice, factor: int, work: Workload, line: NodeLine, *, wanted_share: float
) -> _Choice:
    variant = choice.variant.longer(factor)
    found = forecast(variant, work, line, wanted_share=wanted_share)
    return _Choice(variant, found, choice.loss)
