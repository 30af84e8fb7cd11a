"""Stepwise exchange in memory: what it counts, and that FlexDeMo's nodes stay one."""

import numpy as np
import pytest

from lowcomm.methods import AllReduceMethod, FlexDeMoMethod, StepMethod
from protocols.types.ids import TensorSpec
from sims.lockstep.step_lockstep import StepLockstep
from sims.paced.step_nodes import paced_node

LAYOUT = (TensorSpec(0, "a", (20, 9), 0), TensorSpec(0, "b", (40,), 180))
SHAPES = [tensor.shape for tensor in LAYOUT]


@pytest.mark.parametrize(
    "method",
    [
        AllReduceMethod(),
        FlexDeMoMethod(chunk=8),
        FlexDeMoMethod(replicator="random"),
        FlexDeMoMethod(replicator="full"),
    ],
    ids=lambda method: getattr(method, "replicator", method.name),
)
def test_nodes_that_exchange_their_payloads_stay_equal(method: StepMethod) -> None:
    together = StepLockstep(method, LAYOUT, seed=2)
    nodes = [paced_node(method, SHAPES, slot=slot, seed=2) for slot in range(3)]
    before = nodes[0].state_AP.copy()
    for step in range(1, 6):
        mean_P = together.make_step([node.payload(step) for node in nodes])
        for node in nodes:
            node.apply(mean_P, step, counted=True)
    assert together.step == 5
    assert len({node.state_AP.tobytes() for node in nodes}) == 1
    assert not np.array_equal(nodes[0].state_AP[0], before[0])


def test_payloads_are_counted_once_each() -> None:
    together = StepLockstep(AllReduceMethod(contribution_codec="bf16"), LAYOUT, seed=0)
    written = np.ones(220, np.float32).tobytes()
    assert (together.make_step([written] * 3) == 1).all()
    assert together.payload_bytes == 3 * 2 * 220
