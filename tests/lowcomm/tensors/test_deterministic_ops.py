"""Arithmetic with the same bits on every CPU: what it computes, and that it does."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lowcomm.tensors.deterministic_ops import (
    TILE_ELEMENTS,
    Rates,
    adamw_step,
    descend,
    keep_denormals,
    norm,
)
from tests.marks import few

RATES = Rates(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
DIGEST = "85c753d1fa7227efd841e89e54382e59"
"""Of what PROGRAM makes."""
SMALL = 2.0**-70
"""The squares of gradients times this are denormal."""
PROGRAM = """
import torch, xxhash
from lowcomm.tensors.deterministic_ops import adamw_step, norm
from tests.lowcomm.tensors.test_deterministic_ops import RATES, some
torch.set_num_threads(1)
print(torch.backends.cpu.get_cpu_capability())
param, first, second = some(0), torch.zeros(4099), torch.zeros(4099)
for step in range(1, 20):
    grad = some(step)
    grad.mul_(1.0 / norm(grad))
    adamw_step(param, grad, (first, second), step, RATES)
made = xxhash.xxh3_128()
for tensor in (param, first, second):
    made.update(tensor.numpy())
print(made.hexdigest())
"""


def some(salt: int, elements: int = 4099) -> torch.Tensor:
    """Values of many sizes, without a random source: exact in every fp32."""
    bits = (torch.arange(elements, dtype=torch.int64) + 7919 * salt) * 2654435761 % (1 << 32)
    return (bits >> 8).to(torch.float32).mul_(2.0**-20).sub_(8.0)


def test_a_step_is_that_of_adamw() -> None:
    ours, theirs = some(0), torch.nn.Parameter(some(0))
    moments = (torch.zeros_like(ours), torch.zeros_like(ours))
    adam = torch.optim.AdamW(
        [theirs],
        lr=RATES.lr,
        betas=RATES.betas,
        eps=RATES.eps,
        weight_decay=RATES.weight_decay,
    )
    for step in range(1, 30):
        theirs.grad = some(step)
        adam.step()
        adamw_step(ours, some(step), moments, step, RATES)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(moments[1], adam.state[theirs]["exp_avg_sq"], rtol=1e-5, atol=0)


def test_a_descent_is_that_of_sgd_with_decoupled_weight_decay() -> None:
    ours, update = some(0), some(1)
    descend(ours, update, RATES, rate=0.5)
    expected = some(0).double() * (1 - RATES.lr * RATES.weight_decay) - 0.5 * some(1).double()
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("elements", [1, 3, TILE_ELEMENTS, TILE_ELEMENTS + 5])
def test_a_norm_is_that_of_all_values(elements: int) -> None:
    values = some(3, elements)
    squares = np.square(values.numpy(), dtype=np.float64)
    exact = math.sqrt(math.fsum(map(float, squares)))
    assert norm(values) == pytest.approx(exact, rel=1e-14)


def test_second_moments_below_the_smallest_normal_number_are_kept() -> None:
    """Also by a program that had them flushed to zero, for its own speed."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush")
    keep_denormals()
    param, first, second = some(0), torch.zeros(4099), torch.zeros(4099)
    adamw_step(param, some(1).mul_(SMALL), (first, second), 1, RATES)
    assert 0 < second.max() < torch.finfo(torch.float32).tiny


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1.0, SMALL])
def test_a_gpu_gets_the_same_bits_as_a_cpu(scale: float) -> None:
    states = [
        [each.to(device) for each in (some(0), torch.zeros(4099), torch.zeros(4099))]
        for device in ("cpu", "cuda")
    ]
    for step in range(1, 20):
        for param, first, second in states:
            grad = some(step).mul_(scale).to(param.device)
            adamw_step(param, grad, (first, second), step, RATES)
    for ours, theirs in zip(*states, strict=True):
        assert torch.equal(ours, theirs.cpu())


@pytest.mark.parametrize("capability", few(["default", "avx2", "avx512"], count=2))
def test_every_cpu_gets_the_same_bits(capability: str) -> None:
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    used, digest = made.stdout.split()
    if used.lower() != capability:
        pytest.skip(f"this CPU has no {capability}")
    assert digest == DIGEST
