"""What is made of contributions: slow references, and how far one that is wrong moves it."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lowcomm.numerics.kernels import NORM_ELEMENTS
from lowcomm.numerics.operations import F32, trimmed_mean, weighted_mean
from lowcomm.numerics.robust_means import (
    Aggregate,
    centred_clipping,
    clipped_mean,
    grain_of,
    trimmed_count,
)
from tests.lowcomm.replicas import gaussian

TOKENS = (300, 100, 200, 250, 100)
SIZE = 2 * NORM_ELEMENTS + 77

Combine = Callable[[Sequence[F32], F32], None]


def clipped(contributions: Sequence[F32], out: F32) -> None:
    clipped_mean(contributions, TOKENS[: len(contributions)], out)


def centred(contributions: Sequence[F32], out: F32) -> None:
    arrays = [np.full(out.size, np.nan, np.float32) for _ in range(len(contributions) + 1)]
    centred_clipping(contributions, TOKENS[: len(contributions)], out, arrays.__getitem__)


def trimmed(contributions: Sequence[F32], out: F32) -> None:
    trimmed_mean(contributions, trimmed_count(len(contributions), 0.2), out)


def made(combine: Combine, contributions: Sequence[F32]) -> F32:
    out = np.full_like(contributions[0], np.nan)
    combine(contributions, out)
    return out


def slow_clipped(contributions: Sequence[F32]) -> F32:
    """Norms in halves, in fp64; everything else one fp32 operation after the other."""
    tokens = TOKENS[: len(contributions)]
    weights = [np.float32(count / max(tokens)) for count in tokens]
    inverse = np.float32(1 / sum(map(float, weights)))
    out = np.empty_like(contributions[0])
    for at in range(0, out.size, NORM_ELEMENTS):
        here = slice(at, at + NORM_ELEMENTS)
        norms = [slow_norm(each[here]) for each in contributions]
        median = sorted(norms)[(len(norms) - 1) // 2]
        scales = [np.float32(median / norm) if norm > median else np.float32(1) for norm in norms]
        terms = [
            each[here] * np.float32(scale * weight)
            for each, scale, weight in zip(contributions, scales, weights, strict=True)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        out[here] = total * inverse
    return out


def near(values: F32, seed: int) -> F32:
    away = np.multiply(gaussian(seed, values.size), np.float32(0.3), dtype=np.float32)
    return values + away


def slow_norm(values: F32) -> float:
    terms = [float(value) ** 2 for value in values] + [0.0] * (NORM_ELEMENTS - values.size)
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [one + two for one, two in zip(terms[:half], terms[half:], strict=True)]
    return math.sqrt(terms[0])


def slow_centred(contributions: Sequence[F32]) -> F32:
    middle: F32 = np.sort(np.array(contributions), axis=0)[
        (len(contributions) - 1) // 2 : len(contributions) // 2 + 1
    ]
    total = middle[0] if len(middle) == 1 else middle[0] + middle[1]
    centre: F32 = total * np.float32(1 / len(middle))
    return centre + slow_clipped([each - centre for each in contributions])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("combine", "slow"), [(clipped, slow_clipped), (centred, slow_centred)])
def test_they_have_the_bits_of_one_operation_after_the_other(
    count: int, combine: Combine, slow: Callable[[Sequence[F32]], F32]
) -> None:
    contributions = [np.float32(2**seed) * gaussian(seed, SIZE) for seed in range(count)]
    contributions[-1][NORM_ELEMENTS : 2 * NORM_ELEMENTS] = 0  # A norm of nothing.
    assert made(combine, contributions).tobytes() == slow(contributions).tobytes()


@pytest.mark.parametrize("combine", [clipped, centred, trimmed])
def test_pieces_that_begin_at_blocks_give_the_bits_of_the_whole(combine: Combine) -> None:
    contributions = [gaussian(seed, SIZE) for seed in range(5)]
    whole = made(combine, contributions)
    for border in (NORM_ELEMENTS, 2 * NORM_ELEMENTS):
        pieces = [
            made(combine, [each[here] for each in contributions])
            for here in (slice(0, border), slice(border, SIZE))
        ]
        assert np.concatenate(pieces).tobytes() == whole.tobytes()


@pytest.mark.parametrize("combine", [clipped, centred, trimmed])
@pytest.mark.parametrize("factor", [-1000.0, -1.0, 1000.0])
def test_one_of_five_cannot_move_it_far(combine: Combine, factor: float) -> None:
    """As far as one honest contribution more or less does, about; it moves a mean by 1000 / 5."""
    right = gaussian(9, SIZE)
    contributions = [near(right, seed) for seed in range(5)]
    clean = made(combine, contributions)
    contributions[2] = contributions[2] * np.float32(factor)
    attacked = made(combine, contributions)
    moved = float(np.linalg.norm(attacked - clean) / np.linalg.norm(clean))
    assert moved < 0.5
    mean = np.empty_like(right)
    weighted_mean(contributions, TOKENS, mean)
    by_mean = float(np.linalg.norm(mean - clean) / np.linalg.norm(clean))
    assert by_mean > (100 if abs(factor) > 1 else 0.3)


def test_equal_contributions_are_their_own_mean() -> None:
    same = [gaussian(3, SIZE)] * 3
    for combine in (clipped, centred, trimmed):
        np.testing.assert_allclose(made(combine, same), same[0], rtol=1e-6)


@pytest.mark.parametrize("combine", [clipped, centred])
def test_what_is_not_finite_is_seen(combine: Combine) -> None:
    contributions = [gaussian(seed, SIZE) for seed in range(3)]
    contributions[1][5] = np.nan
    found = made(combine, contributions)
    assert np.isnan(found[5])


@pytest.mark.parametrize(
    ("count", "share", "wanted"),
    [
        *((1, 0.4, 0), (2, 0.4, 0), (3, 0.1, 1), (5, 0.2, 1), (6, 0.2, 2), (10, 0.3, 3)),
        *((5, 0.49, 2), (4, 0.49, 1), (30, 0.1, 3)),
    ],
)
def test_at_least_the_share_is_trimmed_and_one_is_left(
    count: int, share: float, wanted: int
) -> None:
    assert trimmed_count(count, share) == wanted


@pytest.mark.parametrize(
    ("name", "grain"),
    [("mean", 1), ("trimmed_mean", 1), ("clipped_mean", 4096), ("centred_clipping", 4096)],
)
def test_what_needs_norms_is_cut_at_their_blocks(name: Aggregate, grain: int) -> None:
    assert grain_of(name) == grain
