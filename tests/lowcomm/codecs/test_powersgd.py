"""PowerSGD's rank: what it keeps, in which bytes, and how near the best one it comes."""

import numpy as np
import pytest

from lowcomm.codecs.codec import CodecError
from lowcomm.codecs.powersgd import RANK, SIDE, PowerSGD
from lowcomm.numerics.operations import F32
from tests.lowcomm.codecs.samples import encoded, there_and_back


def product(rows: int, columns: int, rank: int, seed: int = 0) -> F32:
    random = np.random.default_rng(seed)
    left, right = random.standard_normal((rows, rank)), random.standard_normal((rank, columns))
    return (left @ right).astype(np.float32).reshape(-1)


def error(values: F32) -> float:
    """Relative, of all values."""
    rest = values.astype(np.float64) - there_and_back(PowerSGD(), values)
    return float(np.linalg.norm(rest) / np.linalg.norm(values))


@pytest.mark.parametrize(
    ("rows", "columns", "rank"),
    [(SIDE, SIDE, RANK), (2 * SIDE, SIDE, RANK), (100, SIDE, RANK), (30, 32, RANK), (64, 512, 2)],
)
def test_a_matrix_of_that_rank_is_kept(rows: int, columns: int, rank: int) -> None:
    assert error(product(rows, columns, rank)) < 2.0**-8


def test_what_is_left_out_is_little_more_than_the_best_columns_leave() -> None:
    scales, ratios = 1 / (1 + np.arange(SIDE)), list[float]()
    for seed in range(6):
        left, right = np.random.default_rng(seed).standard_normal((2, SIDE, SIDE))
        whole = (left * scales) @ right
        spectrum = np.asarray(np.linalg.svd(whole, compute_uv=False))
        best = np.linalg.norm(spectrum[RANK:]) / np.linalg.norm(spectrum)
        ratios.append(error(whole.astype(np.float32).reshape(-1)) / float(best))
    assert min(ratios) >= 1
    assert sum(ratios) / len(ratios) < 1.1


def test_bytes_are_two_thin_matrices_in_bf16_or_the_values_where_these_are_fewer() -> None:
    one = PowerSGD()
    assert one.encoded_bytes(SIDE * SIDE) == 2 * RANK * (SIDE + SIDE)
    assert one.encoded_bytes(100 * SIDE) == 2 * RANK * (100 + SIDE)
    assert one.encoded_bytes(63 * 64) == 2 * RANK * (63 + 64)
    assert one.encoded_bytes(30) == 2 * (1 + 30)
    few = np.array([1.0, -2.5, 3.0], np.float32)
    assert encoded(one, few) == np.array([0x3F80, 0x3F80, 0xC020, 0x4040], "<u2").tobytes()


def test_error_feedback_says_all_of_it_in_time() -> None:
    values = np.random.default_rng(0).standard_normal(64 * 64, np.float32)
    said, residue = np.zeros_like(values), np.zeros_like(values)
    for _ in range(64):
        back = there_and_back(PowerSGD(), values + residue)
        residue, said = values + residue - back, said + back
    assert np.linalg.norm(values - said / 64) < 0.2 * np.linalg.norm(values)


@pytest.mark.parametrize("scale", [2.0**-90, 1.0, 2.0**100])
def test_any_scale_is_as_good(scale: float) -> None:
    one = product(SIDE, SIDE, 8)
    scaled = one * np.float32(scale)
    assert (
        there_and_back(PowerSGD(), scaled).tobytes()
        == (there_and_back(PowerSGD(), one) * np.float32(scale)).tobytes()
    )


def test_a_direction_too_few_is_zeros() -> None:
    payload = np.frombuffer(encoded(PowerSGD(), product(SIDE, SIDE, 1)), "<u2")
    left_KN = payload[: RANK * SIDE].reshape(RANK, SIDE)
    assert [row.any() for row in left_KN] == [True, False, False, False]


def test_half_a_matrix_is_refused() -> None:
    payload = encoded(PowerSGD(), product(SIDE, SIDE, 1))
    with pytest.raises(CodecError, match="powersgd: 2048 bytes for 65536 values, expected 4096"):
        PowerSGD().decode(payload[:2048], np.empty(SIDE * SIDE, np.float32))
