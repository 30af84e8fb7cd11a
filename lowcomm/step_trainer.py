"""The torch half of the per-step methods: gradients into the node's shared memory, their mean out.

Everybody applies the same mean to the same state, so the state is never exchanged. Must NOT decide
when a step is applied, nor speak to a peer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from lowcomm import fixed
from lowcomm.attachment import Peer
from lowcomm.nodes import ShardView, places, reshard, shard_views, whole, window
from lowcomm.step_rank import StepRank
from lowcomm.trainer import Schedule
from protocols.errors import ConfigError, LowcommError

CLIP_EPS = 1e-6
"""As torch.nn.utils.clip_grad_norm_ has it."""


class AllReduce:
    """Every step all nodes apply the mean of their gradients.

    Call `step()` after each `loss.backward()`, on every rank, in place of `optimizer.step()`: the
    optimizer only says how AdamW steps. `run.optimizer.grad_clip` clips the mean, and the gradients
    are empty afterwards. Implements lowcomm.step_rank.StepState.
    """

    name = "allreduce"

    def __init__(
        self, model: nn.Module, optimizer: AdamW, peer: Peer, *, schedule: Schedule | None = None
    ) -> None:
        """Join the run and wait for its state: when this returns, `model` holds it.

        `model` is plain, or has been sharded by `fully_shard` before `optimizer` was made from it;
        its parameters are fp32. With a `schedule`, each group's learning rate is what it is now
        times the schedule's factor. Raises ConfigError for what does not fit.
        """
        if peer.run.method.name != self.name:
            raise ConfigError(
                f"run.method.name is {peer.run.method.name!r}, but this program uses "
                f"{type(self).__name__}"
            )
        self._shards = shard_views(model, rank=peer.rank)
        whole_ones = [x.place.name for x in self._shards if not isinstance(x.parameter, DTensor)]
        if peer.world_size > 1 and whole_ones:
            raise ConfigError(
                f"parameter {whole_ones[0]} is whole on each of {peer.world_size} ranks, and so is "
                "its gradient, of one rank's samples only: shard the model with fully_shard"
            )
        self._groups = _groups(self._shards, optimizer)
        """Number of each parameter's group."""
        self._options: list[dict[str, Any]] = optimizer.param_groups
        self._model = model
        self._peer = peer
        self._schedule = schedule
        self._rates: list[float] = [group["lr"] for group in self._options]
        self._moments = [
            (torch.zeros_like(shard.local), torch.zeros_like(shard.local)) for shard in self._shards
        ]
        peer.join(places(model), elements=sum(shard.elements for shard in self._shards))
        self._rank = StepRank(peer, self)
        self._rank.follow()

    @property
    def finished(self) -> bool:
        """The run is over: `model` holds its last parameters. Leave the loop."""
        return self._peer.finished

    def step(self) -> None:
        """Hand our gradients over; return when the model has been stepped, and the next gradients
        are wanted. Raises LowcommError when the run is finished already."""
        if self.finished:
            raise LowcommError("the run is finished: leave the loop when `method.finished` is true")
        self._rank.hand_over()

    # StepState ------------------------------------------------------------------------------

    @torch.no_grad()
    def write_payload(self, payload: memoryview) -> None:
        grads_P = whole(payload)
        for shard in self._shards:
            if shard.writes:
                grad = shard.parameter.grad
                place = window(grads_P, shard)
                place.zero_() if grad is None else place.copy_(_local(grad))
            shard.parameter.grad = None
        reshard(self._model)

    @torch.no_grad()
    def apply(self, mean: memoryview, step: int) -> None:
        mean_P, clip = whole(mean), self._peer.run.optimizer.grad_clip
        factor = 1.0
        if clip > 0:
            # All ranks of all nodes see the whole mean: they need not ask each other.
            factor = min(1.0, clip / (fixed.norm(mean_P) + CLIP_EPS))
        scheduled = 1.0 if self._schedule is None else self._schedule(step - 1)
        reshard(self._model)
        for shard, moments, number in zip(self._shards, self._moments, self._groups, strict=True):
            grad = window(mean_P, shard).to(shard.local.device, copy=True).mul_(factor)
            rates = self._rates_of(number, scheduled)
            fixed.adamw_step(shard.local, grad, moments, step, rates)

    def write_state(self, state: memoryview) -> None:
        self._move_state(state, out=True)

    def read_state(self, state: memoryview) -> None:
        reshard(self._model)
        self._move_state(state, out=False)

    @torch.no_grad()
    def _move_state(self, state: memoryview, *, out: bool) -> None:
        arrays_3P = whole(state).view(3, -1)
        for shard, moments in zip(self._shards, self._moments, strict=True):
            for array_P, ours in zip(arrays_3P, (shard.local, *moments), strict=True):
                place = window(array_P, shard)
                if not out:
                    ours.copy_(place)
                elif shard.writes:
                    place.copy_(ours)

    def _rates_of(self, number: int, scheduled: float) -> fixed.AdamWRates:
        group = self._options[number]
        return fixed.AdamWRates(
            lr=self._rates[number] * scheduled,
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
        )


def _groups(shards: Sequence[ShardView], optimizer: AdamW) -> list[int]:
    """The parameter group of each shard. Raises ConfigError if the optimizer is not an AdamW of
    just these parameters, or one that does something else."""
    if type(optimizer) is not AdamW:
        raise ConfigError(
            f"the optimizer is {type(optimizer).__name__}: with run.method.name = "
            f'"{AllReduce.name}" all nodes keep the state of torch.optim.AdamW'
        )
    numbers: dict[nn.Parameter, int] = {}
    for number, group in enumerate(optimizer.param_groups):
        if group["amsgrad"] or group["maximize"]:
            raise ConfigError("AdamW with amsgrad or maximize is not what all nodes do")
        numbers.update(dict.fromkeys(group["params"], number))
    missing = [shard.place.name for shard in shards if shard.parameter not in numbers]
    if missing or len(numbers) != len(shards):
        raise ConfigError(
            f"the optimizer must step all parameters of the model, and no others: {missing[:3]} "
            "are not among its own"
        )
    return [numbers[shard.parameter] for shard in shards]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
