"""Methods that agree on each step: all nodes have equal parameters at all times.

The nodes are equal, so one model stands for all. Must NOT evaluate, or access files.
"""

import time
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from benchmarks.comparing.groups import Feed, Pace
from benchmarks.comparing.node import ComparedNode, State
from benchmarks.comparing.settings import Setting
from lowcomm.data import Batches
from lowcomm.flexdemo import MomentumExchange
from lowcomm.methods import FlexDeMoMethod, Parameter
from lowcomm.models import Llama
from lowcomm.tensors import deterministic_ops
from protocols.types import ConfigError
from sims.lockstep import StepLockstep


class _StepGroup(ABC):
    """Base class; a subclass defines a step."""

    def __init__(self, setting: Setting, batches: Batches, state: State | None) -> None:
        """`state`: of the warm start, if the setting has one."""
        first = 0 if state is None else setting.warm_steps
        self._setting = setting
        self.node = ComparedNode(setting)
        if state is not None:
            self.node.begin(state, steps=first)
        self._feed = Feed(setting, batches, first_step=first)
        self._pace = Pace(setting)
        self._steps = 0

    def make_step(self, step: int) -> None:
        start = time.thread_time()
        self._step(self._pace.schedule(step))
        self._pace.taken.append((time.thread_time() - start) / self._setting.nodes)
        self._steps += 1

    @property
    def evaluated(self) -> Llama:
        return self.node.model

    @property
    def tokens(self) -> int:
        return self._steps * self._setting.nodes * self._setting.step_tokens

    @property
    def waited(self) -> list[float]:
        return [0.0] * self._setting.nodes

    @property
    def step_s(self) -> float:
        return self._pace.step_s

    def close(self) -> None:
        """There is nothing to close."""
        return

    @abstractmethod
    def _step(self, factor: float) -> None:
        """Make one step of all nodes together; `factor` scales the learning rate."""
        ...


class AllReduceGroup(_StepGroup):
    """Each step applies the mean of all nodes' gradients.

    The optimizer is torch's, as in a node that trains alone;
    `lowcomm/tensors/deterministic_ops.py` has the same AdamW with one rounding an operation.
    """

    def _step(self, factor: float) -> None:
        nodes = self._setting.nodes
        for _ in range(nodes):
            self.node.backward(self._feed.draw(), share=1 / nodes)
        self.node.inner_step(factor)


class FlexDeMoGroup(_StepGroup):
    """Each step applies the mean of all nodes' payloads, which each node extracts from its
    momentum; the momentum starts at zero.

    Nodes compress as ranks do, and their payloads get the daemons' arithmetic. Each node clips its
    own gradients, as `lowcomm/worker.py` does.
    """

    def __init__(self, setting: Setting, batches: Batches, state: State | None) -> None:
        """`state`: as for all groups. Raises ConfigError for AdamW."""
        super().__init__(setting, batches, state)
        method, layout = setting.method, self.node.layout
        assert isinstance(method, FlexDeMoMethod)
        if method.step != "sgd":
            raise ConfigError(f'flexdemo steps by sgd here: method.step is "{method.step}"')
        self._method = method
        self._together = StepLockstep(method, layout, seed=setting.seed)
        replication = method.make_exchange(
            [Parameter(each.name, each.shape) for each in layout], seed=setting.seed
        )
        self._payload_bytes = replication.payload_bytes
        self._compressions = [
            MomentumExchange(replication, momentum=method.momentum, rank=0, world_size=1)
            for _ in range(setting.nodes)
        ]
        self._params_P = torch.from_numpy(self.node.params_P)

    def _step(self, factor: float) -> None:
        wanted, number = self._setting.optimizer, self._together.step + 1
        rates = deterministic_ops.Rates(lr=wanted.lr * factor, weight_decay=wanted.weight_decay)
        written: list[bytearray] = []
        for compression in self._compressions:
            self.node.backward(self._feed.draw())
            gradients_RC = [_rows(each) for each in self.node.take_gradients()]
            payload = bytearray(self._payload_bytes)
            each_lr = [rates.lr] * len(gradients_RC)
            compression.write(gradients_RC, each_lr, number, memoryview(payload))
            written.append(payload)
        update_P = torch.from_numpy(self._together.make_step(written))
        for node in self._together.counted:
            self._compressions[node].counted(number)
        if self._method.sign == "after":
            update_P.sign_()
        rate = 1.0 if self._method.update_has_rate else rates.lr
        deterministic_ops.descend(self._params_P, update_P, rates, rate=rate)


def _rows(tensor: Tensor) -> Tensor:
    """The tensor as [rows, columns], the form that a replicator takes."""
    return tensor.reshape(len(tensor), -1)
