"""The computation of the ranks of a paced node in a stepwise run, with numpy, for the whole node at
once.

Gradients are movements (sims/paced/moves.py). Paced ranks under real daemons and nodes in memory
use this code: both compute the same bits. Must NOT import torch, nor know of other nodes.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lowcomm.methods import FlexDeMoMethod, Parameter, StepMethod
from lowcomm.numerics import F32
from protocols.types import ConfigError
from sims.paced.moves import initial_parameters, movement

RATE = np.float32(2.0**-8)
"""Learning rate of FlexDeMo's nodes."""


class PacedNode(Protocol):
    """One node's part in a stepwise run."""

    state_AP: F32
    """The arrays of the method's state, fp32 [A, elements]."""

    def payload(self, step: int) -> bytes:
        """The bytes of the node's payload for this step."""
        ...

    def apply(self, mean_P: F32, step: int, *, counted: bool) -> None:
        """Complete the step with its mean, fp32. `counted`: the mean contains our payload."""
        ...


def paced_node(
    method: StepMethod, shapes: Sequence[tuple[int, ...]], *, slot: int, seed: int
) -> PacedNode:
    """The node in this slot, with tensors of these shapes. Raises ConfigError."""
    if isinstance(method, FlexDeMoMethod):
        return FlexNode(method, shapes, slot=slot, seed=seed)
    return MovingNode(sum(int(np.prod(shape)) for shape in shapes), slot=slot, seed=seed)


class MovingNode:
    """A node with movements for gradients; its parameters move by the mean gradient."""

    def __init__(self, elements: int, *, slot: int, seed: int) -> None:
        self.state_AP: F32 = np.zeros((3, elements), np.float32)
        """fp32 [3, elements]: the parameters, the last mean, the number of the last step."""
        self.state_AP[0] = initial_parameters(elements, seed=seed)
        self._slot = slot

    def payload(self, step: int) -> bytes:
        return movement(self.state_AP.shape[1], slot=self._slot, step=step).tobytes()

    def apply(self, mean_P: F32, step: int, *, counted: bool) -> None:
        apply_step(self.state_AP, mean_P, step)


def apply_step(state_3P: F32, mean_P: F32, step: int) -> None:
    """Complete a step in the state, fp32 [3, elements]: add the mean to the parameters, store the
    mean and the step."""
    state_3P[0] += mean_P
    state_3P[1] = mean_P
    state_3P[2] = np.float32(step)


class FlexNode:
    """The work of lowcomm/flexdemo/momentum.py and lowcomm/flexdemo/method.py in ranks with torch,
    with SGD."""

    def __init__(
        self, method: FlexDeMoMethod, shapes: Sequence[tuple[int, ...]], *, slot: int, seed: int
    ) -> None:
        """Raises ConfigError for AdamW."""
        if method.step != "sgd":
            raise ConfigError(f'paced nodes need run.method.step = "sgd", got "{method.step}"')
        parameters = [Parameter(str(number), shape) for number, shape in enumerate(shapes)]
        self._method = method
        self._exchange = method.make_exchange(parameters, seed=seed)
        self._elements = sum(tensor.elements for tensor in self._exchange.tensors)
        self.state_AP: F32 = initial_parameters(self._elements, seed=seed)[None].copy()
        self.momentum_P: F32 = np.zeros(self._elements, np.float32)
        self._made: tuple[int, F32] = (0, self.momentum_P)
        """(step, momentum after it if our payload is counted)."""
        self._recalled: tuple[int, F32] = (-1, self.momentum_P)
        self._slot = slot

    def recall(self, step: int, momentum_P: F32) -> None:
        """Take the momentum that an earlier incarnation had after this step. It is used if our
        first step is the next one."""
        self._recalled = (step, momentum_P)

    def payload(self, step: int) -> bytes:
        if self._recalled[0] == step - 1 and not self._made[0]:
            self.momentum_P = self._recalled[1]
        values_P = movement(self._elements, slot=self._slot, step=step)
        replicator = self._exchange.replicator
        if replicator.has_momentum:
            values_P *= RATE
            values_P += self.momentum_P * np.float32(self._method.momentum)
        written = np.zeros(self._exchange.payload_bytes, np.uint8)
        after_P = np.zeros_like(values_P)
        for tensor in self._exchange.tensors:
            grid, turn = tensor.grid, self._exchange.turn(step, tensor)
            for span in grid.spans(0, grid.groups):
                start = tensor.first_element + span.first * grid.chunk * grid.columns
                here = slice(start, start + span.count * span.rows * grid.columns)
                values_GRC = values_P[here].reshape(span.count, span.rows, grid.columns)
                records_GS, said_GRC = replicator.encode_groups(values_GRC, grid, turn)
                written[tensor.place(span, replicator)] = records_GS.reshape(-1)
                if replicator.has_momentum:
                    after_P[here] = (values_GRC - said_GRC).reshape(-1)
        self._made = (step, after_P)
        return written.tobytes()

    def apply(self, mean_P: F32, step: int, *, counted: bool) -> None:
        if counted and self._made[0] == step:
            self.momentum_P = self._made[1]
        update_P = np.sign(mean_P) if self._method.sign == "after" else mean_P
        rate = np.float32(1) if self._method.update_has_rate else RATE
        self.state_AP[0] -= update_P * rate
