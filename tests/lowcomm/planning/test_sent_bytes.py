"""Bytes are those that nodes in lockstep count, and seconds follow from them."""

from typing import Any

import numpy as np
import pytest

from lowcomm.methods import (
    AllReduceMethod,
    DiLoCoMethod,
    FlexDeMoMethod,
    NoLoCoMethod,
    SparseLoCoMethod,
)
from lowcomm.planning.sent_bytes import NodeTraffic, traffic_of
from protocols.types.ids import TensorSpec
from sims.lockstep.exchange import LocalContribution, Lockstep

SIZE = 3 << 12
LAYOUT = (TensorSpec(0, "w", (SIZE,), 0),)
SQUARES = (TensorSpec(0, "w", (3 * 64, 64), 0),)
PARTS = (TensorSpec(0, "w", (SIZE // 3, 2), 0), TensorSpec(1, "b", (SIZE // 3,), 0))


@pytest.mark.parametrize("codec", ["fp32", "int8", "fp4", "topk", "2bit"])
def test_what_a_node_contributes_is_what_lockstep_counts(codec: Any) -> None:
    method = DiLoCoMethod(contribution_codec=codec)
    together = Lockstep(method, LAYOUT, nodes=4)
    together.begin(0, np.zeros(SIZE, np.float32))
    local_P = np.random.default_rng(0).standard_normal(SIZE, np.float32)
    together.exchange_round(0, {node: LocalContribution(local_P, 10) for node in range(4)})
    payload = together.payload_bytes / 4
    together.close()
    found = traffic_of(method, LAYOUT, nodes=4)
    if method.mean_codec is None:
        assert (found.sent_bytes, found.least_bytes) == (3 * payload, payload)
        assert found.line == (3 * payload,), "everybody still gets all others' copies"
    else:
        assert found.sent_bytes == 3 * (payload + 4 * SIZE) / 4
        assert found.least == found.line == found.sent


def test_the_published_counts() -> None:
    fp32 = traffic_of(DiLoCoMethod(inner_steps=30), LAYOUT, nodes=4)
    assert (fp32.sent, fp32.least, fp32.line) == ((6 * SIZE,),) * 3
    assert (fp32.round_steps, fp32.hidden_steps) == (30, 0)
    step = traffic_of(AllReduceMethod(), LAYOUT, nodes=4)
    assert step.sent == (12 * SIZE,), "to all others"
    assert step.least == step.line == (6 * SIZE,), "in a ring"
    assert step.round_steps == 1


def test_what_only_some_nodes_say_of_a_place_is_published_and_the_rest_is_summed() -> None:
    demo = traffic_of(FlexDeMoMethod(), SQUARES, nodes=4)
    payload = 3 * 32 * 7 // 2  # 32 places of 12 bits and values of 16 in each 4096.
    assert (demo.sent, demo.least, demo.line) == ((3 * payload,), (payload,), (3 * payload,))
    drawn = traffic_of(FlexDeMoMethod(replicator="random"), SQUARES, nodes=4)
    payload = SIZE // 16 * 2
    assert (drawn.sent, drawn.least, drawn.line) == ((3 * payload,), *2 * ((3 * payload // 2,),))
    signs = traffic_of(FlexDeMoMethod(replicator="full", values="sign"), SQUARES, nodes=4)
    assert (signs.sent, signs.least) == ((3 * SIZE // 8,), (SIZE // 8,)), "no sum is one bit"


def test_sparseloco_has_the_published_count() -> None:
    found = traffic_of(SparseLoCoMethod(inner_steps=30), LAYOUT, nodes=4)
    assert found.least_bytes == pytest.approx(SIZE * 64 / 4096 * 14 / 8, rel=0.2)
    dense = traffic_of(DiLoCoMethod(inner_steps=30), LAYOUT, nodes=4)
    assert dense.least_bytes > 100 * found.least_bytes


def test_of_a_pair_each_sends_all_to_the_other_however_many_nodes_there_are() -> None:
    for nodes in (2, 4, 100):
        found = traffic_of(NoLoCoMethod(inner_steps=30), LAYOUT, nodes=nodes)
        assert (found.sent, found.least, found.line) == ((4 * SIZE,),) * 3


def test_fragments_send_as_much_as_the_whole_and_less_at_a_time() -> None:
    method = DiLoCoMethod(inner_steps=30)
    whole, parts = (traffic_of(method, layout, nodes=4) for layout in (LAYOUT, PARTS))
    assert parts.sent_bytes == whole.sent_bytes
    assert parts.bytes_of(60) == whole.bytes_of(60) == (2 * whole.sent_bytes,) * 2
    assert parts.window_bytes == whole.window_bytes * 2 / 3


def even(**said: int) -> NodeTraffic:
    return NodeTraffic(
        sent=(1000,) * 3, least=(1000,) * 3, line=(1000,) * 3, round_steps=12, **said
    )


def test_seconds_are_the_step_and_what_of_the_exchange_is_not_hidden_behind_steps() -> None:
    assert even().step_seconds(step_s=0.5, rate_bps=8000) == pytest.approx(0.5 + 3 / 12)
    assert even(hidden_steps=2).step_seconds(step_s=0.5, rate_bps=8000) == 0.5
    slow = even(hidden_steps=2).step_seconds(step_s=0.5, rate_bps=4000)
    assert slow == pytest.approx(0.5 + 3 / 12)


@pytest.mark.parametrize("hidden", [0, 1, 2, 8])
def test_nothing_is_paced_over_the_steps_that_hide_it(hidden: int) -> None:
    """A line that is fast enough carries a whole fragment in one step."""
    assert even(hidden_steps=hidden).window_bytes == 1000
