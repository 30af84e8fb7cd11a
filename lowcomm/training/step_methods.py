"""The torch half of the per-step methods: payloads of each rank, and steps by their mean.

All-reduce is here, FlexDeMo in lowcomm/flexdemo/method.py. All nodes apply the same mean to the
same state, so the state is never exchanged. Must NOT decide when a step is applied, nor communicate
with a peer.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lowcomm.config.lr_schedule import Schedule
from lowcomm.tensors import deterministic_ops
from lowcomm.tensors.frozen import frozen_parts
from lowcomm.tensors.fsdp import (
    ShardView,
    check_sharded,
    node_shards,
    on_device,
    pause_at_exit,
    reshard,
    wait_for,
    whole,
    window,
)
from lowcomm.tensors.gpu_copies import pin
from lowcomm.tensors.model_buffers import floating_buffer
from lowcomm.tensors.names import Model, named_parameters
from lowcomm.tensors.placement import local_of
from lowcomm.training.attach import Peer
from lowcomm.training.step_rank import StepRank
from protocols.types import ConfigError, LowcommError

CLIP_EPS = 1e-6
"""The same constant as in torch.nn.utils.clip_grad_norm_."""


class StepTrainer(ABC):
    """The base of all per-step methods; a subclass defines its payload and its step.

    In a subclass, `name` is the method's name in `[run.method]`. Call `step()` after each
    `loss.backward()`, on every rank, in place of `optimizer.step()`: only the options of the
    optimizer are used. The gradients are empty afterwards. Implements
    lowcomm.training.step_rank.StepState.
    """

    name: ClassVar[str]

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        peer: Peer,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        """Join the run and wait for its state: when this returns, `model` holds it.

        `model` and `optimizer` are as in `lowcomm.training.round_methods.Method`. With a
        `schedule`, the learning rate of each group is its present value times the schedule's
        factor. Raises ConfigError if the model, the optimizer or the agreed method does not fit.
        """
        pause_at_exit()
        deterministic_ops.keep_denormals()
        self._peer = peer
        with peer.fitting():
            method = peer.method(self.name, program=type(self).__name__)
            parts = node_shards(model, rank=peer.rank, world_size=peer.world_size)
            self._layout, self._shards = parts.layout, parts.shards
            check_buffers(model, self.name, kept=peer.run.buffers == "local")
            check_sharded(parts)
            self._check_optimizer(optimizer)
            others = [each for _, each in named_parameters(model)]
            self._groups = group_numbers(self._shards, optimizer, others=others)
            """Index of each parameter's group in the optimizer."""
            self._prepare()
            frozen = frozen_parts(model, rank=peer.rank, world_size=peer.world_size)
        self._options: list[dict[str, Any]] = optimizer.param_groups
        self._model = model
        self._schedule = schedule
        self._rates: list[float] = [group["lr"] for group in self._options]
        self._moments = [
            tuple(
                torch.zeros_like(shard.local, dtype=torch.float32) for _ in method.state_arrays[1:]
            )
            for shard in self._shards
        ]
        """For each parameter, the run's other state arrays."""
        elements = sum(shard.elements for shard in self._shards)
        attached = peer.join(self._layout, elements=elements, frozen=frozen)
        pin(peer.client.lasting_memory, parts.device)
        if attached.rank_state:
            self._recall(attached.rank_state)
        self._rank = StepRank(peer, self)
        self._rank.follow()

    @property
    def finished(self) -> bool:
        """Whether the run is over: `model` holds its final parameters. Leave the loop."""
        return self._peer.finished

    def step(self) -> None:
        """Send this rank's gradients; returns when the model has been stepped, and the next
        gradients are needed. Raises LowcommError if the run is finished already."""
        if self.finished:
            raise LowcommError("the run is finished: leave the loop when `method.finished` is true")
        self._peer.check_drawn()
        self._rank.hand_over()

    @abstractmethod
    def _check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ConfigError for an optimizer with another step than this method's."""
        ...

    def _prepare(self) -> None:
        """Called when the shards are known, before the first order of the daemon. Raises
        ConfigError if something does not fit."""
        return

    def _recall(self, directory: str) -> None:
        """Load the data that `save_state` saved to `directory` in an earlier incarnation of this
        node, if any."""
        return

    # StepState ------------------------------------------------------------------------------

    @abstractmethod
    def write_payload(self, payload: memoryview) -> None: ...

    @abstractmethod
    def apply_mean(self, mean: memoryview, step: int, *, counted: bool) -> None: ...

    def save_state(self, directory: str, step: int) -> None:
        return  # All nodes have the same state, and no more.

    def write_state(self, state: memoryview) -> None:
        self._move_state(state, out=True)

    def read_state(self, state: memoryview) -> None:
        reshard(self._model)
        self._move_state(state, out=False)

    @torch.no_grad()
    def _move_state(self, state: memoryview, *, out: bool) -> None:
        run = self._peer.run
        arrays_AP = whole(state).view(len(run.method.state_arrays), -1)
        for shard, moments in zip(self._shards, self._moments, strict=True):
            values = shard.values
            for array_P, ours in zip(arrays_AP, (values, *moments), strict=True):
                place = window(array_P, shard)
                if not out:
                    ours.copy_(place, non_blocking=True)
                elif shard.writes:
                    place.copy_(ours, non_blocking=True)
            if not out:
                shard.store(values)
        wait_for(self._shards)

    def _steps_by(
        self, step: int
    ) -> Iterator[tuple[ShardView, tuple[Tensor, ...], deterministic_ops.Rates]]:
        """(shard, moments, rates of this step) for each parameter."""
        return zip(self._shards, self._moments, self._rates_of(step), strict=True)

    def _rates_of(self, step: int) -> list[deterministic_ops.Rates]:
        """The rates of each parameter in this step."""
        scheduled = 1.0 if self._schedule is None else self._schedule(step - 1)
        of_groups = [
            deterministic_ops.Rates(
                lr=rate * scheduled,
                weight_decay=group["weight_decay"],
                betas=group.get("betas", (0.0, 0.0)),
                eps=group.get("eps", 0.0),
            )
            for rate, group in zip(self._rates, self._options, strict=True)
        ]
        return [of_groups[number] for number in self._groups]


class AllReduce(StepTrainer):
    """In every step all nodes apply the mean of their gradients, by AdamW.

    `run.optimizer.grad_clip` clips the mean.
    """

    name = "allreduce"

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        check_adamw(optimizer, self.name)

    # StepState ------------------------------------------------------------------------------

    @torch.no_grad()
    def write_payload(self, payload: memoryview) -> None:
        grads_P = whole(payload)
        for shard in self._shards:
            if shard.writes:
                grad = shard.parameter.grad
                place = window(grads_P, shard)
                if grad is None:
                    place.zero_()
                else:
                    place.copy_(local_of(grad), non_blocking=True)
        wait_for(self._shards)
        for shard in self._shards:
            shard.parameter.grad = None
        reshard(self._model)

    @torch.no_grad()
    def apply_mean(self, mean: memoryview, step: int, *, counted: bool) -> None:
        run = self._peer.run
        optimizer = run.optimizer
        mean_P, clip = whole(mean), optimizer.grad_clip
        factor = 1.0
        if clip > 0:
            # Every rank of every node has the whole mean: no exchange is needed for its norm.
            factor = min(1.0, clip / (deterministic_ops.norm(mean_P) + CLIP_EPS))
        reshard(self._model)
        for shard, (first, second), rates in self._steps_by(step):
            grad = on_device(mean_P, shard).mul_(factor)
            values = shard.values
            deterministic_ops.adamw_step(values, grad, (first, second), step, rates)
            shard.store(values)
        wait_for(self._shards)


def check_buffers(model: Model, method: str, *, kept: bool) -> None:
    """Raise ConfigError if the model has floating buffers, unless each node keeps its own."""
    name = floating_buffer(model)
    if name and not kept:
        raise ConfigError(
            f"buffer {name} would differ between nodes, because {method} does not average buffers: "
            'set run.buffers = "local" to keep one in each node, or take a method of rounds'
        )


def check_adamw(optimizer: Optimizer, method: str) -> None:
    """Raise ConfigError unless the optimizer is AdamW, without options that change its step."""
    if type(optimizer) is not AdamW:
        raise ConfigError(
            f"the optimizer is {type(optimizer).__name__}: with run.method.name = "
            f'"{method}" all nodes keep the state of torch.optim.AdamW'
        )
    if any(group["amsgrad"] or group["maximize"] for group in optimizer.param_groups):
        raise ConfigError("AdamW with amsgrad or maximize is not supported: leave both out")


def group_numbers(
    shards: Sequence[ShardView], optimizer: Optimizer, *, others: Iterable[nn.Parameter] = ()
) -> list[int]:
    """The parameter group of each shard. Raises ConfigError unless the optimizer steps exactly
    these parameters; it may have `others` of the model, which have no gradient."""
    numbers: dict[nn.Parameter, int] = {}
    for number, group in enumerate(optimizer.param_groups):
        numbers.update(dict.fromkeys(group["params"], number))
    missing = [shard.place.name for shard in shards if shard.parameter not in numbers]
    if missing:
        raise ConfigError(
            "the optimizer must step all parameters of the model: it lacks "
            f"{', '.join(missing[:3])}{' and others' * (len(missing) > 3)}"
        )
    known = {shard.parameter for shard in shards}.union(others)
    if unknown := len(numbers.keys() - known):
        raise ConfigError(
            "the optimizer must step only parameters of the model: it has "
            f"{unknown} that are not in the model"
        )
    return [numbers[shard.parameter] for shard in shards]
