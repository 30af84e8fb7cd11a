"""FlexDeMo in a rank: the momentum of the groups that are this rank's, and what it says of it.

    momentum = beta momentum + lr gradient;  what is said of it goes into the payload, and leaves
    the momentum with the step that counts the payload

Momentum belongs to the node: it is never exchanged, and begins with zero wherever ranks do, unless
they go on from just the step after which it was kept. Must NOT know of orders, of files, or of the
parameters' values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lowcomm.flexdemo.momentum_file import Kept
from lowcomm.flexdemo.row_exchange import Borders
from lowcomm.flexdemo.torch_replicators import ReplicatorTwin
from lowcomm.replicators.payload_mean import Replication
from lowcomm.replicators.replicators import ELEMENTS_AT_ONCE

GPU_ELEMENTS_AT_ONCE = 1 << 26
"""Of a tensor: enough to be worth starting kernels, and no more memory than a large layer takes."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A payload that may be counted."""

    step: int
    momentum_RC: Sequence[Tensor]
    """Of each tensor, once it is."""


class Compression:
    """Of one rank, for its life."""

    def __init__(
        self,
        replication: Replication,
        *,
        momentum: float,
        rank: int,
        world_size: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """`group`: the ranks of this node, where they are several. `momentum`: beta."""
        self._replication = replication
        self._twin = ReplicatorTwin(replication.replicator)
        grids = [tensor.grid for tensor in replication.tensors]
        self.borders = Borders(grids, rank=rank, world_size=world_size)
        self._group = group
        self._beta = momentum
        self._momentum_RC: list[Tensor] = []
        """Of each tensor the rows that are ours; empty before the first payload."""
        self._counted = 0
        """The last step whose payload left them."""
        self._recalled: Kept | None = None
        self._made: _Made | None = None

    @torch.no_grad()
    def write(
        self, held_RC: Sequence[Tensor], rates: Sequence[float], step: int, payload: memoryview
    ) -> None:
        """Our groups of this step's payload, from the gradient's rows that we hold of each tensor,
        fp32 [rows, columns], and each tensor's learning rate."""
        gradients_RC = self.borders.exchange(held_RC, self._group)
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
            # It would never go away again.
            values_RC.masked_fill_(~torch.isfinite(values_RC), 0.0)
            after_RC.append(values_RC)
        self._made = _Made(step, after_RC)

    def counted(self, step: int) -> None:
        """The payload that was made of this step is in its mean. Without this call the momentum is
        what it was before, and the step's gradient is gone."""
        if self._made is not None and self._made.step == step:
            self._momentum_RC = list(self._made.momentum_RC)
            self._counted, self._made = step, None

    def kept(self, step: int) -> Kept | None:
        """The momentum after this step; None before the first payload, and where steps are made
        again that are in it already."""
        if not self._momentum_RC or self._counted > step:
            return None
        return step, self._momentum_RC

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Of this rank's momentum."""
        owned, tensors = self.borders.owned, self._replication.tensors
        return [(len(r), tensor.grid.columns) for r, tensor in zip(owned, tensors, strict=True)]

    def recall(self, kept: Kept) -> None:
        """An earlier life of this node had this momentum: ours, if the next step is our first."""
        self._recalled = kept

    def _first(self, gradients_RC: Sequence[Tensor], step: int) -> list[Tensor]:
        """The momentum before our first payload, which is of this step."""
        kept, self._recalled = self._recalled, None
        if kept is None or kept[0] != step - 1:
            # What others heard of it in steps since then would be said again.
            return [torch.zeros_like(gradient) for gradient in gradients_RC]
        each = zip(kept[1], gradients_RC, strict=True)
        return [momentum_RC.to(gradient_RC.device) for momentum_RC, gradient_RC in each]

    def _say(self, number: int, values_RC: Tensor, step: int, written: Tensor) -> Tensor:
        """Write the records of a tensor's groups that are ours; what they say of the values."""
        tensor, rows = self._replication.tensors[number], self.borders.owned[number]
        grid, turn = tensor.grid, self._replication.turn(step, tensor)
        at_once = ELEMENTS_AT_ONCE if values_RC.device.type == "cpu" else GPU_ELEMENTS_AT_ONCE
        first, all_said_RC = rows.first // grid.chunk, torch.empty_like(values_RC)
        stop = -(-rows.stop // grid.chunk) if len(rows) else first
        for span in grid.spans(first, stop, at_once=at_once):
            start = (span.first - first) * grid.chunk
            here = slice(start, start + span.count * span.rows)
            values_GRC = values_RC[here].reshape(span.count, span.rows, grid.columns)
            records_GS, said_GRC = self._twin.encode(values_GRC, grid, turn)
            written[tensor.place(span, self._replication.replicator)] = records_GS.reshape(-1).cpu()
            all_said_RC[here] = said_GRC.reshape(-1, grid.columns)
        return all_said_RC
