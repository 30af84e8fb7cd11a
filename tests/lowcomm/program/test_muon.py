"""Muon against torch's own, beside AdamW, and on shards."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from lowcomm.program.muon import Muon, orthogonalised, scale
from protocols.types.errors import ConfigError
from tests.lowcomm.forking import run_ranks


def gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def linear(*sizes: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


@pytest.mark.parametrize("shape", [(8, 8), (16, 5), (5, 16), (3, 7, 4)])
def test_what_is_orthogonalised_has_singular_values_near_one(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    svdvals = cast("Callable[[Tensor], Tensor]", torch.linalg.svdvals)
    values = svdvals(orthogonalised(matrices))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_matrices_side_by_side_are_stepped_each_by_itself() -> None:
    matrices = torch.randn((3, 6, 4), generator=torch.Generator().manual_seed(2))
    apart = torch.stack([orthogonalised(matrix) for matrix in matrices])
    torch.testing.assert_close(orthogonalised(matrices), apart)


def test_a_zero_matrix_stays_one() -> None:
    assert orthogonalised(torch.zeros(4, 3)).abs().max() == 0


def test_matrices_go_as_torchs_muon_and_the_rest_as_adamw() -> None:
    """torch iterates in bf16: updates agree to its precision, which the sum of ten steps shows."""
    ours, theirs = linear(12, 20, 6), linear(12, 20, 6)
    matrices = [p for p in ours.parameters() if p.ndim == 2]
    biases = [p for p in ours.parameters() if p.ndim == 1]
    optimizer = Muon(matrices, biases, lr=0.02, weight_decay=0.1)
    muon = torch.optim.Muon(
        [p for p in theirs.parameters() if p.ndim == 2],
        lr=0.02,
        weight_decay=0.1,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = torch.optim.AdamW(
        [p for p in theirs.parameters() if p.ndim == 1],
        lr=0.02,
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    for seed in range(10):
        gradients(ours, seed)
        gradients(theirs, seed)
        optimizer.step()
        muon.step()
        adamw.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        tolerance = 0.0 if mine.ndim == 1 else 0.03 * 10 * 0.02 * scale(mine.shape)
        assert (mine - other).abs().max().item() <= tolerance


def test_gradients_are_there_after_the_step_as_after_any_other() -> None:
    model = linear(3, 2)
    gradients(model, 0)
    before: list[Tensor] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    weight, bias = model.parameters()
    Muon([weight], [bias], lr=0.1).step()
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_vector_is_no_matrix() -> None:
    with pytest.raises(ConfigError, match=r"Muon steps matrices, not a tensor \(5,\)"):
        Muon([nn.Parameter(torch.zeros(5))], [], lr=0.1)


@pytest.mark.deadline(100)
@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_shards_are_stepped_as_the_whole(world: int, tmp_path: Path) -> None:
    """Under FSDP2, with matrices of which some ranks hold nothing."""
    found: list[list[float]] = []
    for ranks in (1, world):
        directory = tmp_path / str(ranks)
        directory.mkdir()
        run_ranks("node_ranks.py", "muon", ranks, directory)
        found += [json.loads(path.read_text()) for path in sorted(directory.glob("rank-*.json"))]
    assert len(found) == 1 + world
    for values in found[1:]:
        assert values == found[1]
        torch.testing.assert_close(torch.tensor(values), torch.tensor(found[0]), atol=1e-6, rtol=0)
