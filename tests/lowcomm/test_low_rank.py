"""PowerSGD's halves: what they lose, and that two rounds agree on one matrix."""

import numpy as np
import pytest

from lowcomm.low_rank import expand, next_basis, orthonormal, project, project_back, start_basis
from lowcomm.outer import F32

ROWS, COLUMNS = 50, 33


def matrix(seed: int, rank: int) -> F32:
    random = np.random.default_rng(seed)
    left, right = random.standard_normal((ROWS, rank)), random.standard_normal((rank, COLUMNS))
    return (left @ right).astype(np.float32)


def mean(arrays: list[F32]) -> F32:
    total = np.zeros_like(arrays[0])
    for array in arrays:
        total += array
    return total / np.float32(len(arrays))


def both_rounds(matrices: list[F32], basis: F32) -> tuple[F32, F32]:
    """(the mean matrix as all expand it, the mean of round two)."""
    left = orthonormal(mean([project(one, basis) for one in matrices]))
    right = mean([project_back(one, left) for one in matrices])
    out = np.full((ROWS, COLUMNS), 7, np.float32)
    expand(left, right, out)
    return out, right


def test_a_mean_of_this_rank_is_exact() -> None:
    matrices = [matrix(1, 2), matrix(2, 2)]
    out, _ = both_rounds(matrices, start_basis(COLUMNS, 4, 9))
    np.testing.assert_allclose(out, (matrices[0] + matrices[1]) / 2, atol=1e-4)


def test_a_warm_start_finds_the_best_approximation() -> None:
    whole = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    best = np.sqrt((np.linalg.svd(whole, compute_uv=False)[4:] ** 2).sum())
    basis, errors = start_basis(COLUMNS, 4, 9), list[float]()
    for _ in range(30):
        out, right = both_rounds([whole], basis)
        basis = next_basis(right, 9)
        errors.append(float(np.linalg.norm(whole - out)))
    assert errors[-1] < errors[0]
    assert errors[-1] == pytest.approx(best, rel=0.02)


def test_columns_are_orthonormal_and_a_dependent_one_is_zero() -> None:
    columns = np.random.default_rng(0).standard_normal((ROWS, 3)).astype(np.float32)
    columns = np.concatenate([columns, columns[:, :1] * np.float32(2)], axis=1)
    left = orthonormal(columns)
    np.testing.assert_allclose(left.T @ left, np.diag([1, 1, 1, 0]), atol=1e-6)
    assert not orthonormal(np.zeros((5, 2), np.float32)).any()


def test_a_column_that_vanished_starts_anew() -> None:
    right = np.ones((COLUMNS, 2), np.float32)
    right[:, 1] = 0
    basis = next_basis(right, 9)
    assert (basis[:, 0] == 1).all()
    assert (basis[:, 1] == start_basis(COLUMNS, 2, 9)[:, 1]).all()
    assert np.ptp(basis[:, 1]) > 1
    assert abs(basis).max() <= 1


def test_many_rows_are_expanded_as_few_are() -> None:
    random = np.random.default_rng(0)
    left, right = random.standard_normal((700, 2)), random.standard_normal((300, 2))
    left, right = left.astype(np.float32), right.astype(np.float32)
    out = np.empty((700, 300), np.float32)
    expand(left, right, out)
    expected = left[:, :1] * right[:, 0] + left[:, 1:] * right[:, 1]
    assert out.tobytes() == expected.astype(np.float32).tobytes()
