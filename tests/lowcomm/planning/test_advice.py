"""The advised method has the lowest loss of those that the line allows."""

import pytest

from lowcomm.methods import RoundMethod
from lowcomm.planning.advice import LONGER, Advice, advise
from lowcomm.planning.forecast import Workload, forecast
from lowcomm.planning.line_load import NodeLine
from lowcomm.planning.model_shapes import stated_parameters
from lowcomm.planning.variants import INNER_STEPS, compared_variants
from protocols.types.errors import ConfigError

WORK = Workload(parameters=stated_parameters(1_200_000, layers=12), nodes=4, step_s=0.1)
VARIANTS = compared_variants(WORK.parameters)


def advised(rate_bps: float, *, memory_bytes: float = 1e12) -> Advice:
    line = NodeLine(rate_bps=rate_bps)
    found = [forecast(each, WORK, line, wanted_share=0.9) for each in VARIANTS]
    return advise(VARIANTS, found, WORK, line, wanted_share=0.9, memory_bytes=memory_bytes)


def test_a_fast_line_needs_no_other_method() -> None:
    assert advised(1e12).variant.name == "allreduce"


def test_a_slower_line_costs_some_loss() -> None:
    chosen = [advised(rate) for rate in (1e12, 3e8, 1e8, 1e7)]
    costs = [each.variant.cost.above for each in chosen if each.variant.cost is not None]
    assert len(costs) == 4
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
    assert all(each.forecast.share >= 0.9 for each in chosen)


def test_on_a_very_slow_line_rounds_are_longer() -> None:
    found = advised(3e5)
    method = found.variant.method
    assert isinstance(method, RoundMethod)
    assert method.inner_steps > INNER_STEPS
    assert found.forecast.share >= 0.9
    assert "not measured" in found.why


def test_on_a_hopeless_line_the_best_of_all_is_named() -> None:
    found = advised(1e3)
    method = found.variant.method
    assert isinstance(method, RoundMethod)
    assert method.inner_steps == INNER_STEPS * LONGER[-1]
    assert found.forecast.share < 0.9
    assert "nearest" in found.why


def test_what_does_not_fit_into_the_memory_is_not_advised() -> None:
    rich, unknown = advised(1e12), advised(1e12, memory_bytes=0.0)
    assert unknown.variant.name != "allreduce"
    assert 4 * unknown.forecast.memory_bytes < rich.forecast.memory_bytes
    little = advised(1e12, memory_bytes=unknown.forecast.memory_bytes)
    assert little.forecast.memory_bytes <= unknown.forecast.memory_bytes
    with pytest.raises(ConfigError, match="no method's daemon fits into"):
        advised(1e12, memory_bytes=1000.0)
