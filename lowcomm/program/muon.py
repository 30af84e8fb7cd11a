"""Muon as an inner optimizer (MuLoCo, arXiv:2505.23725): Muon for matrices, AdamW for the rest.

The step of a matrix needs the whole matrix: under FSDP2 the momentum stays sharded, and the update
is gathered inside the node at each step (no byte leaves the node). torch.optim.Muon takes plain 2-D
tensors only, so the other parameters would need a second optimizer; a method takes one. Must NOT
know of nodes or rounds.

Legend: A rows, B columns of a matrix; leading dimensions are matrices side by side.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from protocols.types import ConfigError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration of Keller Jordan's Muon. Its slope at 0 is steep, and the
resulting singular values lie in about [0.7, 1.2] instead of at 1."""
ITERATIONS = 5
NORM_MIN = 1e-7
RMS = 0.2
"""Root mean square of AdamW's updates. An orthogonal matrix times 0.2 sqrt(max(A, B)) has the same,
so that one learning rate and weight decay fit both (arXiv:2502.16982, section 2.2)."""


class Muon(Optimizer):
    """An optimizer that steps `matrices` by Muon and `others` by AdamW, each group with its
    options."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        """Raises ConfigError if one of `matrices` has fewer than 2 dimensions."""
        shared = {"lr": lr, "weight_decay": weight_decay}
        adamw = {"momentum": None, "betas": betas, "eps": eps}
        groups = [
            {"params": list(matrices), "momentum": momentum},
            {"params": list(others), **adamw},
        ]
        for matrix in cast("list[nn.Parameter]", groups[0]["params"]):
            if matrix.ndim < 2:
                raise ConfigError(f"Muon steps matrices, not a tensor {tuple(matrix.shape)}")
        super().__init__([group for group in groups if group["params"]], shared)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore
        """Make one inner step of all parameters that have a gradient."""
        assert closure is None, "Muon takes gradients that are there"
        for group in self.param_groups:
            stepped = [each for each in group["params"] if each.grad is not None]
            if group["momentum"] is None:
                self._step_others(stepped, group)
                continue
            for matrix in stepped:
                self._step_matrix(matrix, group)

    def _step_others(self, parameters: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        states = [cast("dict[str, Tensor]", self.state[each]) for each in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        adamw(
            list(parameters),
            [each.grad for each in parameters if each.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _step_matrix(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        grad = cast("Tensor", parameter.grad)
        state = cast("dict[str, Tensor]", self.state[parameter])
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        buffer_AB = state["momentum_buffer"]
        buffer_AB.mul_(group["momentum"]).add_(grad)
        update_AB = grad.add(buffer_AB, alpha=group["momentum"])  # Nesterov.
        if isinstance(update_AB, DTensor):
            mesh, placements = update_AB.device_mesh, update_AB.placements
            # Every rank has the whole matrix and computes the same result: nothing has to be sent.
            whole_AB = orthogonalised(update_AB.full_tensor())
            update_AB = distribute_tensor(whole_AB, mesh, placements, src_data_rank=None)
        else:
            update_AB = orthogonalised(update_AB)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update_AB, alpha=-group["lr"] * scale(parameter.shape))


def scale(shape: Sequence[int]) -> float:
    """The factor that gives an orthogonal matrix of this shape the RMS of AdamW's updates."""
    return RMS * math.sqrt(max(shape[-2:]))


def orthogonalised(matrices_AB: Tensor) -> Tensor:
    """An approximation of U V^T for matrices U S V^T of shape [..., A, B], by Newton-Schulz.

    Computed in bf16 on a GPU, which is fast and exact enough; elsewhere in the tensor's own dtype,
    which the result always has.
    """
    x: Tensor = matrices_AB.bfloat16() if matrices_AB.is_cuda else matrices_AB
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    norms = x.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    x = x / norms.clamp(min=NORM_MIN)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrices_AB.dtype)
