"""Tensor arithmetic that gives every node the same bits, whatever its CPU is.

Each IEEE operation is a call of its own, and the order of sums is written out. No library optimizer
and no library reduction is used, because their order and fused operations differ between CPUs
(protocol.md section 6). Must NOT know nodes or ranks.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TILE_ELEMENTS = 1 << 18
"""Elements of a tile in `norm`: as many as a CPU cache holds in fp64. A power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one step, with the names of torch.optim.AdamW."""

    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.0, 0.0)
    eps: float = 0.0


def keep_denormals() -> None:
    """Have the CPU round results below 2**-126 as IEEE says. Some libraries and programs have it
    flush them to zero, which GPUs and other nodes do not; second moments are as small as that."""
    torch.set_flush_denormal(False)


@torch.no_grad()
def adamw_step(
    param: Tensor, grad: Tensor, moments: tuple[Tensor, Tensor], step: int, rates: Rates
) -> None:
    """Make one step of AdamW, in place on `param` and its two moments; `step` counts from 1."""
    (beta1, beta2), (first, second) = rates.betas, moments
    param.mul_(1 - rates.lr * rates.weight_decay)
    first.mul_(beta1)
    first.add_(grad.mul(1 - beta1))
    second.mul_(beta2)
    second.add_(grad.mul(grad).mul_(1 - beta2))
    scale = _quotient(second, 1 - beta2**step).sqrt_().add_(rates.eps)
    param.sub_(_quotient(first, 1 - beta1**step).div_(scale).mul_(rates.lr))


def _quotient(values: Tensor, by: float) -> Tensor:
    """Divide by a tensor on the same device: to divide by a number, a GPU multiplies with its
    reciprocal, and the last bit differs from a CPU's."""
    return values.div(values.new_full((), by))


@torch.no_grad()
def descend(param: Tensor, update: Tensor, rates: Rates, *, rate: float) -> None:
    """Set param -= rate * update, in place, after the decoupled weight decay of `rates`."""
    param.mul_(1 - rates.lr * rates.weight_decay)
    param.sub_(update.mul(rate))


@torch.no_grad()
def norm(values_P: Tensor) -> float:
    """The L2 norm of fp32 [P], summed pairwise in fp64."""
    total = 0.0
    for tile in torch.split(values_P, TILE_ELEMENTS):
        squares = torch.zeros(TILE_ELEMENTS, dtype=torch.float64, device=tile.device)
        squares[: tile.numel()] = tile
        squares.mul_(squares)
        while squares.numel() > 1:
            half = squares.numel() // 2
            squares = squares[:half] + squares[half:]
        total += squares.item()
    return math.sqrt(total)
