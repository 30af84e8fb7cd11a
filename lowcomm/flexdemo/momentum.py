"""FlexDeMo in a rank: the momentum of the groups that this rank owns, and the records sent of it.

    momentum = beta momentum + lr gradient;  its encoded part goes into the payload, and leaves the
    momentum with the step that counts the payload

Momentum belongs to the node: it is never exchanged. It begins with zero when ranks begin, unless
they continue from exactly the step after which it was saved, by any number of ranks. Must NOT know
orders, files, or the parameters' values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lowcomm.flexdemo.momentum_file import Kept
from lowcomm.flexdemo.row_exchange import RowExchange
from lowcomm.flexdemo.torch_replicators import TorchReplicator
from lowcomm.replicators.payload_mean import PayloadMean
from lowcomm.replicators.replicators import ELEMENTS_AT_ONCE

GPU_ELEMENTS_AT_ONCE = 1 << 26
"""Elements of a tensor that a GPU encodes at once: enough to be worth starting kernels, and no more
memory than a large layer takes."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A payload that a step may still count."""

    step: int
    momentum_RC: Sequence[Tensor]
    """Of each tensor, the momentum after the payload is counted."""


class MomentumExchange:
    """The momentum and the payloads of one rank, as long as the rank lives."""

    def __init__(
        self,
        replication: PayloadMean,
        *,
        momentum: float,
        rank: int,
        world_size: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """`group`: the ranks of this node, if there are several. `momentum`: beta."""
        self._replication = replication
        self._twin = TorchReplicator(replication.replicator)
        grids = [tensor.grid for tensor in replication.tensors]
        self.row_exchange = RowExchange(grids, rank=rank, world_size=world_size)
        self._group = group
        self._beta = momentum
        self._momentum_RC: list[Tensor] = []
        """Of each tensor, the rows that this rank owns; empty before the first payload."""
        self._counted = 0
        """The last step of which the payload has left the momentum."""
        self._recalled: Kept | None = None
        self._made: _Made | None = None

    @torch.no_grad()
    def write(
        self, held_RC: Sequence[Tensor], rates: Sequence[float], step: int, payload: memoryview
    ) -> None:
        """Write this rank's groups of the step's payload. `held_RC`: the gradient's rows that this
        rank holds of each tensor, fp32 [rows, columns]; `rates`: the learning rate of each
        tensor."""
        gradients_RC = self.row_exchange.exchange(held_RC, self._group)
        written = torch.frombuffer(payload, dtype=torch.uint8)
        if not self._replication.replicator.has_momentum:
            for number, gradient_RC in enumerate(gradients_RC):
                self._say(number, gradient_RC, step, written)
            return
        if not self._momentum_RC:
            self._momentum_RC = self._first(gradients_RC, step)
        after_RC: list[Tensor] = []
        for number, gradient_RC in enumerate(gradients_RC):
            values_RC = self._momentum_RC[number].mul(self._beta)
            values_RC.add_(gradient_RC.mul(rates[number]))
            values_RC.sub_(self._say(number, values_RC, step, written))
            # Else it would stay in the momentum for ever.
            values_RC.masked_fill_(~torch.isfinite(values_RC), 0.0)
            after_RC.append(values_RC)
        self._made = _Made(step, after_RC)

    def counted(self, step: int) -> None:
        """The mean of this step contains the payload that was made for it, so the payload leaves
        the momentum. Without this call the momentum stays as before, and the step's gradient is
        lost."""
        if self._made is not None and self._made.step == step:
            self._momentum_RC = list(self._made.momentum_RC)
            self._counted, self._made = step, None

    def kept(self, step: int) -> Kept | None:
        """The momentum after this step, to be saved; None before the first payload, and if the
        momentum already contains later steps, because steps are made again."""
        if not self._momentum_RC or self._counted > step:
            return None
        return step, self._momentum_RC

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shape (rows, columns) of each whole tensor, of which a rank has the rows that it
        owns."""
        return [(x.grid.rows, x.grid.columns) for x in self._replication.tensors]

    def recall(self, kept: Kept) -> None:
        """Offer the momentum of an earlier incarnation of this node; it is used if this rank's
        first step is the next one."""
        self._recalled = kept

    def _first(self, gradients_RC: Sequence[Tensor], step: int) -> list[Tensor]:
        """The momentum before this rank's first payload, which is for this step."""
        kept, self._recalled = self._recalled, None
        if kept is None or kept[0] != step - 1:
            # Values that later steps have sent of it would be sent again.
            return [torch.zeros_like(gradient) for gradient in gradients_RC]
        each = zip(kept[1], gradients_RC, strict=True)
        return [momentum_RC.to(gradient_RC.device) for momentum_RC, gradient_RC in each]

    def _say(self, number: int, values_RC: Tensor, step: int, written: Tensor) -> Tensor:
        """Write the records of a tensor's groups that this rank owns; returns the values that the
        records contain, fp32 [rows, columns]."""
        tensor, rows = self._replication.tensors[number], self.row_exchange.owned[number]
        grid, turn = tensor.grid, self._replication.turn(step, tensor)
        at_once = ELEMENTS_AT_ONCE if values_RC.device.type == "cpu" else GPU_ELEMENTS_AT_ONCE
        first, all_said_RC = rows.first // grid.chunk, torch.empty_like(values_RC)
        stop = -(-rows.stop // grid.chunk) if len(rows) else first
        for span in grid.spans(first, stop, at_once=at_once):
            start = (span.first - first) * grid.chunk
            here = slice(start, start + span.count * span.rows)
            values_GRC = values_RC[here].reshape(span.count, span.rows, grid.columns)
            records_GS, said_GRC = self._twin.encode_groups(values_GRC, grid, turn)
            written[tensor.place(span, self._replication.replicator)] = records_GS.reshape(-1).cpu()
            all_said_RC[here] = said_GRC.reshape(-1, grid.columns)
        return all_said_RC
