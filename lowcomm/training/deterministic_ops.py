"""Tensor arithmetic that gives every node the same bits, whatever its CPU is.

One IEEE operation at a time, as a call of its own, and sums in an order that is written out: no
library optimizer and no library reduction, whose order and fused operations differ between CPUs
(protocol.md section 6). Must NOT know of nodes or ranks.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TILE_ELEMENTS = 1 << 18
"""Of a norm: as many as a cache holds in fp64. A power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of one step, as torch.optim.AdamW calls them."""

    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.0, 0.0)
    eps: float = 0.0


@torch.no_grad()
def adamw_step(
    param: Tensor, grad: Tensor, moments: tuple[Tensor, Tensor], step: int, rates: Rates
) -> None:
    """One step of AdamW, in place on `param` and its two moments; `step` counts from 1."""
    (beta1, beta2), (first, second) = rates.betas, moments
    param.mul_(1 - rates.lr * rates.weight_decay)
    first.mul_(beta1)
    first.add_(grad.mul(1 - beta1))
    second.mul_(beta2)
    second.add_(grad.mul(grad).mul_(1 - beta2))
    scale = _quotient(second, 1 - beta2**step).sqrt_().add_(rates.eps)
    param.sub_(_quotient(first, 1 - beta1**step).div_(scale).mul_(rates.lr))


def _quotient(values: Tensor, by: float) -> Tensor:
    """By a tensor on the same device: by a number, a GPU multiplies with its reciprocal, which
    differs from what a CPU does in the last bit."""
    return values.div(values.new_full((), by))


@torch.no_grad()
def descend(param: Tensor, update: Tensor, rates: Rates, *, rate: float) -> None:
    """param -= rate update, in place, after decoupled weight decay by the rates."""
    param.mul_(1 - rates.lr * rates.weight_decay)
    param.sub_(update.mul(rate))


@torch.no_grad()
def norm(values_P: Tensor) -> float:
    """The L2 norm, summed pairwise in fp64."""
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
