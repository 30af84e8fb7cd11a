"""The forecast of a method, worked out by hand."""

import pytest

from lowcomm.methods import AllReduceMethod, AnyMethod, DiLoCoMethod, StreamingDiLoCoMethod
from lowcomm.planning.forecast import Forecast, Workload, forecast
from lowcomm.planning.line_load import PAYLOAD_SHARE, NodeLine
from lowcomm.planning.loss_costs import LossCost
from lowcomm.planning.model_shapes import stated_parameters
from lowcomm.planning.variants import Variant
from protocols.types.errors import ConfigError

SIZE = 40_000
WORK = Workload(parameters=stated_parameters(SIZE, layers=4), nodes=2, step_s=0.5)
LINE = NodeLine(rate_bps=1e6 / PAYLOAD_SHARE, round_trip_s=0.1)
DILOCO = DiLoCoMethod(inner_steps=20)


def found(method: AnyMethod, line: NodeLine = LINE, work: Workload = WORK) -> Forecast:
    variant = Variant(name="it", method=method, cost=LossCost(0.02, 0.01))
    return forecast(variant, work, line, wanted_share=0.9)


def test_a_round_is_its_steps_its_bytes_and_three_round_trips() -> None:
    made = found(DILOCO)
    sent = 4 * SIZE
    assert (made.steps, made.sent_bytes, made.burst_bytes) == (20, sent, sent)
    assert made.round_s == pytest.approx(
        20 * 0.5 + 8 * 2 * sent / 1e6 + 0.3
    )  # To the owner, and back.
    assert made.share == pytest.approx(10 / made.round_s)
    assert (made.loss_above, made.loss_error) == (0.02, 0.01)


def test_a_step_of_a_per_step_method_waits_for_one_way() -> None:
    made = found(AllReduceMethod())
    assert (made.steps, made.sent_bytes) == (1, 4 * SIZE)
    assert made.round_s == pytest.approx(0.5 + 8 * 4 * SIZE / 1e6 + 0.05)


def test_overlap_hides_what_steps_cover() -> None:
    method = StreamingDiLoCoMethod(inner_steps=20, fragments=2, overlap_steps=4)
    made = found(method)
    assert made.burst_bytes == made.sent_bytes / 2
    assert made.share == 1.0, "1.28 s and the round trips take less than 4 steps"
    slow = found(method, NodeLine(rate_bps=LINE.rate_bps / 3, round_trip_s=0.0))
    part_s = 3 * 8 * 2 * made.burst_bytes / 1e6
    assert slow.round_s == pytest.approx(10 + 2 * (part_s - 4 * 0.5))


def test_the_rate_that_is_enough_is_enough_and_not_much_more() -> None:
    made = found(DILOCO)
    assert made.enough_bps is not None
    assert found(DILOCO, NodeLine(rate_bps=made.enough_bps, round_trip_s=0.1)).share >= 0.9
    assert found(DILOCO, NodeLine(rate_bps=0.98 * made.enough_bps, round_trip_s=0.1)).share < 0.9


def test_no_rate_is_enough_if_the_round_trip_is_too_long() -> None:
    assert found(AllReduceMethod(), NodeLine(rate_bps=1e9, round_trip_s=0.2)).enough_bps is None


def test_memory_is_that_which_the_daemon_checks() -> None:
    assert found(DILOCO).memory_bytes > 2 * 4 * SIZE, "outer parameters and momentum"
    more = Workload(parameters=WORK.parameters, nodes=8, step_s=0.5)
    assert found(AllReduceMethod(), work=more).memory_bytes > found(AllReduceMethod()).memory_bytes


@pytest.mark.parametrize(
    ("nodes", "step_s", "words"), [(1, 1.0, "1 nodes"), (2, 0.0, "0 s"), (2, float("inf"), "inf")]
)
def test_what_is_no_run_of_several_nodes_is_refused(nodes: int, step_s: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Workload(parameters=WORK.parameters, nodes=nodes, step_s=step_s)


def test_what_is_no_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate_bps must be positive"):
        NodeLine(rate_bps=0.0)
