"""FlexDeMo in the training loop of each rank: it sends compressed momentum and applies the mean.

Must NOT decide when a step is applied, nor communicate with a peer.
"""

import logging
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.optim import SGD, Optimizer

from lowcomm import methods
from lowcomm.flexdemo.momentum import MomentumExchange
from lowcomm.flexdemo.momentum_file import load_momentum, save_momentum
from lowcomm.loop_state.rank_checkpoint import RankFile
from lowcomm.methods.base import Parameter
from lowcomm.tensors import deterministic_ops
from lowcomm.tensors.fsdp import ShardView, on_device, reshard, wait_for, whole
from lowcomm.tensors.placement import local_of
from lowcomm.training.step_methods import StepTrainer, check_adamw
from protocols.types import ConfigError

log = logging.getLogger(__name__)


class FlexDeMo(StepTrainer):
    """In every step each node sends the fastest components of its momentum, and all apply the mean.

    The optimizer sets the learning rate and the (decoupled) weight decay: SGD without momentum, or
    AdamW if run.method.step is "adamw". Gradients are not clipped; if you want that, clip them
    before `step()`. `fully_shard` must cover all ranks of the node, and shard the first dimension.
    """

    name = "flexdemo"

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        if self._method.step == "adamw":
            check_adamw(optimizer, self.name)
        else:
            check_sgd(optimizer, self.name)

    def _prepare(self) -> None:
        shards, peer, method = self._shards, self._peer, self._method
        if len(shards) < len(self._layout):
            raise ConfigError(
                "this rank has a part of the model only: FlexDeMo needs the whole model on each "
                "rank, sharded by fully_shard; take a method of rounds for a pipeline"
            )
        parameters = [Parameter(shard.place.name, shard.place.shape) for shard in shards]
        self._compression = MomentumExchange(
            method.make_exchange(parameters, seed=peer.run.seed),
            momentum=method.momentum,
            rank=peer.rank,
            world_size=peer.world_size,
            group=group_of(shards),
        )
        for shard, rows in zip(shards, self._compression.row_exchange.held, strict=True):
            # The offset of an empty shard has no meaning.
            if shard.sizes and len(rows) and shard.offsets[0] != rows.first:
                raise ConfigError(
                    f"parameter {shard.place.name} is not cut into equal pieces over the ranks of "
                    "the node: shard the model with fully_shard over one mesh of all of them"
                )

    @property
    def _method(self) -> methods.FlexDeMoMethod:
        method = self._peer.run.method
        assert isinstance(method, methods.FlexDeMoMethod), "checked by its name"
        return method

    def _recall(self, directory: str) -> None:
        exchange, file = self._compression, self._file(directory)
        kept = load_momentum(file, exchange.row_exchange.owned, exchange.shapes)
        if kept is not None:
            self._compression.recall(kept)

    def _file(self, directory: str) -> RankFile:
        return RankFile(Path(directory), self._peer.rank, self._peer.world_size)

    # StepState ------------------------------------------------------------------------------

    def save_state(self, directory: str, step: int) -> None:
        kept = self._compression.kept(step)
        if kept is None:
            return
        try:
            save_momentum(self._file(directory), kept)
        except OSError as error:
            # Do not end the run: a restart begins with zero momentum.
            log.warning("rank %d cannot save its momentum: %s", self._peer.rank, error)

    @torch.no_grad()
    def write_payload(self, payload: memoryview) -> None:
        step = self._rank.step
        rates = [each.lr for each in self._rates_of(step)]
        self._compression.write([gradient_rows(x) for x in self._shards], rates, step, payload)
        for shard in self._shards:
            shard.parameter.grad = None
        reshard(self._model)

    @torch.no_grad()
    def apply_mean(self, mean: memoryview, step: int, *, counted: bool) -> None:
        if counted:
            self._compression.counted(step)
        mean_P, method = whole(mean), self._method
        reshard(self._model)
        for shard, moments, rates in self._steps_by(step):
            update, values = on_device(mean_P, shard), shard.values
            if method.sign == "after":
                update.sign_()
            if method.step == "adamw":
                first, second = moments
                deterministic_ops.adamw_step(values, update, (first, second), step, rates)
            else:
                rate = 1.0 if method.update_has_rate else rates.lr
                deterministic_ops.descend(values, update, rates, rate=rate)
            shard.store(values)
        wait_for(self._shards)


def check_sgd(optimizer: Optimizer, method: str) -> None:
    """Raise ConfigError unless the optimizer is SGD, without options that change its step."""
    if type(optimizer) is not SGD:
        raise ConfigError(
            f"the optimizer is {type(optimizer).__name__}: with run.method.name = "
            f'"{method}" the model steps as with torch.optim.SGD; '
            'for AdamW set run.method.step = "adamw"'
        )
    if any(group["momentum"] or group["maximize"] for group in optimizer.param_groups):
        raise ConfigError(
            "SGD with momentum or maximize is not supported: set momentum=0 and maximize=False "
            "(run.method.momentum sets the momentum of each node)"
        )


def group_of(shards: list[ShardView]) -> dist.ProcessGroup | None:
    """The process group of the node's ranks; None if no parameter is sharded. Raises ConfigError
    for a parameter that is sharded otherwise than by its first dimension."""
    group: dist.ProcessGroup | None = None
    for shard in shards:
        parameter = shard.parameter
        if not isinstance(parameter, DTensor):
            continue
        if parameter.placements != (Shard(0),):
            raise ConfigError(
                f"parameter {shard.place.name} is placed as {parameter.placements}: FlexDeMo needs "
                "the first dimension sharded over all ranks of the node, and nothing else"
            )
        group = parameter.device_mesh.get_group()
    return group


def gradient_rows(shard: ShardView) -> Tensor:
    """The gradient of the rows that this rank holds: fp32 [rows, columns]; zeros if there is
    none."""
    grad, local = shard.parameter.grad, shard.local
    values = (
        torch.zeros_like(local, dtype=torch.float32) if grad is None else local_of(grad).float()
    )
    rows = local.shape[0] if local.dim() else 1
    return values.reshape(rows, math.prod(local.shape[1:]))
