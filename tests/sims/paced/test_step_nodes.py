"""Paced nodes: they make what ranks with torch make of the same gradients."""

import math

import numpy as np
import pytest
import torch

from lowcomm.flexdemo.momentum import MomentumExchange
from lowcomm.methods import FlexDeMoMethod
from lowcomm.methods.base import Parameter
from lowcomm.tensors import deterministic_ops
from protocols.types.errors import ConfigError
from sims.paced.moves import initial_parameters, movement
from sims.paced.step_nodes import RATE, FlexNode, paced_node

SHAPES = [(70, 33), (100,)]
ELEMENTS = 70 * 33 + 100
METHODS = [
    FlexDeMoMethod(),
    FlexDeMoMethod(chunk=8, values="sign", topk=3),
    FlexDeMoMethod(replicator="random", sign="none"),
    FlexDeMoMethod(replicator="striding", values="sign", sign="before"),
    FlexDeMoMethod(replicator="full"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.replicator)
def test_numpy_and_torch_make_the_same_node(method: FlexDeMoMethod) -> None:
    named = [Parameter(str(number), shape) for number, shape in enumerate(SHAPES)]
    exchange = method.make_exchange(named, seed=5)
    node = paced_node(method, SHAPES, slot=2, seed=5)
    ranks = MomentumExchange(exchange, momentum=method.momentum, rank=0, world_size=1)
    parameters_P = torch.from_numpy(initial_parameters(ELEMENTS, seed=5))
    rates = deterministic_ops.Rates(lr=float(RATE), weight_decay=0.0)
    for step in range(1, 8):
        gradient_P = torch.from_numpy(movement(ELEMENTS, slot=2, step=step))
        parts = torch.split(gradient_P, [math.prod(shape) for shape in SHAPES])
        rows = [part.reshape(shape[0], -1) for part, shape in zip(parts, SHAPES, strict=True)]
        payload = bytearray(exchange.payload_bytes)
        ranks.write(rows, [float(RATE)] * 2, step, memoryview(payload))
        assert node.payload(step) == payload
        mean_P, counted = np.empty(ELEMENTS, np.float32), step != 4
        exchange.write_mean(step, [payload], mean_P)
        if counted:
            ranks.counted(step)
        node.apply(mean_P, step, counted=counted)
        update_P = torch.from_numpy(mean_P)
        update_P = update_P.sign() if method.sign == "after" else update_P
        rate = 1.0 if method.update_has_rate else float(RATE)
        deterministic_ops.descend(parameters_P, update_P, rates, rate=rate)
        assert node.state_AP[0].tobytes() == parameters_P.numpy().tobytes()


def test_paced_nodes_have_no_adamw() -> None:
    with pytest.raises(ConfigError, match="sgd"):
        FlexNode(FlexDeMoMethod(step="adamw"), SHAPES, slot=0, seed=0)
