"""PowerSGD (arXiv:1905.13727): each 65536 values as a 256 x 256 matrix of rank 4, 0.0625 bytes a
value.

In the paper each round takes one step of the power iteration, from the basis of the last round, in
two all-reduces with a basis that all nodes share. Here each contributor takes both steps by itself
from a constant basis, and sends the two thin matrices: this needs one round trip, and no state that
a joiner would need or a lost round could spoil. Matrices are squares of consecutive values, not the
model's own. If a tensor of rank r has rows of 256 values, its squares have rank r at most; each
factor of two between its row length and 256 at most doubles that. Used with gather and error
feedback: the part that the rank leaves out is at most as large as the matrix. All sums are taken in
a fixed order, so that all machines make the same bytes. Must NOT use matmul.

Shapes: N rows, M columns, K rank.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import xxhash

from lowcomm.codecs.bits import bf16_of, counted_bits, from_bf16
from lowcomm.codecs.codec import Payload, WritablePayload, check_size
from lowcomm.numerics.operations import F32

SIDE = 256
RANK = 4
POWER_STEPS = 2
"""Steps of the power iteration. If singular values fall like 1/k, two steps leave out 1.06 times as
much as the best four columns do, one step 1.51 times, three steps 1.03 times (means of 12
matrices). Each step is as much work as the first."""
_VANISHED = 1e-5
"""If a column keeps at most this share of its norm after earlier columns are subtracted, it is a
combination of them; the rest is fp32 rounding."""
_TINY = np.float32(2.0**-100)
"""If a matrix's largest magnitude is below this, the matrix is sent as zeros."""
_LARGEST = np.float32(2.0**125)
"""Limit of the right factor's values: four products with such values still have a finite sum."""


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    columns: int
    rank: int

    @property
    def numbers(self) -> int:
        """The number of values that are sent."""
        return self.rank * (self.rows + self.columns)


def _shape(elements: int) -> _Shape:
    """The shape of the matrix for that many values: about square, and a power of two wide, as most
    tensors are. If one row takes fewer numbers, it is one row."""
    columns = 1
    while columns * columns < elements:
        columns *= 2
    rows = -(-elements // columns)
    square, row = _Shape(rows, columns, min(RANK, rows)), _Shape(1, elements, 1)
    return square if square.numbers < row.numbers else row


_WHOLE = _shape(SIDE * SIDE)


class PowerSGD:
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "powersgd"
    grain = SIDE * SIDE
    reducible = True

    def encoded_bytes(self, elements: int) -> int:
        whole, rest = divmod(elements, self.grain)
        return 2 * (whole * _WHOLE.numbers + (_shape(rest).numbers if rest else 0))

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        assert len(out) == self.encoded_bytes(values_P.size), "out has another size"
        wire, at = np.frombuffer(out, np.uint8), 0
        for first in range(0, values_P.size, self.grain):
            values = values_P[first : first + self.grain]
            numbers = _numbers(values, _shape(values.size))
            wire[at : at + 2 * numbers.size] = bf16_of(numbers).astype("<u2").view(np.uint8)
            at += 2 * numbers.size

    def decode(self, payload: Payload, out_P: F32) -> None:
        check_size(self, payload, out_P.size)
        halves, at = np.frombuffer(payload, "<u2"), 0
        for first in range(0, out_P.size, self.grain):
            out = out_P[first : first + self.grain]
            shape = _shape(out.size)
            numbers = np.empty(shape.numbers, np.float32)
            from_bf16(halves[at : at + shape.numbers], numbers)
            at += shape.numbers
            split = shape.rank * shape.rows
            left_KN = numbers[:split].reshape(shape.rank, shape.rows)
            right_KM = numbers[split:].reshape(shape.rank, shape.columns)
            out[:] = _product(left_KN, right_KM).reshape(-1)[: out.size]


def _numbers(values: F32, shape: _Shape) -> F32:
    """The numbers that are sent for one matrix, fp32 [K (N + M)]: its left factor, then its right
    one."""
    with np.errstate(all="ignore"):
        peak = np.abs(values).max()
        if not np.isfinite(peak):
            return np.full(shape.numbers, np.nan, np.float32)
        if peak < _TINY:
            return np.zeros(shape.numbers, np.float32)
        _, exponent = np.frexp(peak)
        scaled = np.ldexp(values, -exponent)  # So that no sum of products overflows.
        left_KN, right_KM = _factors(scaled, shape)
        right_KM = np.clip(np.ldexp(right_KM, exponent), -_LARGEST, _LARGEST)
    return np.concatenate([left_KN.reshape(-1), right_KM.reshape(-1)])


def _factors(values: F32, shape: _Shape) -> tuple[F32, F32]:
    """(left factor, [K, N], with orthonormal rows in bf16; right factor, [K, M], the matrix
    projected on those rows)."""
    if shape.rows == 1:
        return np.ones((1, 1), np.float32), values.reshape(1, -1)
    # Sums are taken by halves, so rows are padded to a power of two.
    grid_NM = np.zeros((1 << (shape.rows - 1).bit_length(), shape.columns), np.float32)
    grid_NM.reshape(-1)[: values.size] = values
    grid_MN = np.ascontiguousarray(grid_NM.T)
    right_KM = _basis()[: shape.rank, : shape.columns]
    left_KN = np.empty(0, np.float32)
    for _ in range(POWER_STEPS):
        left_KN = _orthonormal(_times(right_KM, grid_MN))
        right_KM = _times(left_KN, grid_NM)
    return left_KN[:, : shape.rows], right_KM


def _times(each_KN: F32, grid_NM: F32) -> F32:
    """The product each x grid, fp32 [K, M]; every sum is taken by halves."""
    out_KM = np.empty((len(each_KN), grid_NM.shape[1]), np.float32)
    terms_NM = np.empty_like(grid_NM)
    for each_N, out_M in zip(each_KN, out_KM, strict=True):
        np.multiply(grid_NM, each_N[:, None], out=terms_NM)
        _sum_rows(terms_NM)
        out_M[:] = terms_NM[0]
    return out_KM


def _sum_rows(terms_NM: npt.NDArray[np.floating]) -> None:
    """Sum all rows into the first one, by halves. N is a power of two."""
    rows = len(terms_NM)
    while rows > 1:
        rows //= 2
        np.add(terms_NM[:rows], terms_NM[rows : 2 * rows], out=terms_NM[:rows])


def _orthonormal(rows_KN: F32) -> F32:
    """The rows made orthonormal by Gram-Schmidt in fp64, then rounded to bf16; zeros for a row that
    vanishes."""
    done: list[npt.NDArray[np.float64]] = []
    for row_N in rows_KN.astype(np.float64):
        before, vector_N = np.sqrt(_dot(row_N, row_N)), row_N
        for _ in range(2):  # The second pass removes the rest that rounding left.
            for other_N in done:
                vector_N = vector_N - other_N * _dot(vector_N, other_N)
        norm = np.sqrt(_dot(vector_N, vector_N))
        keep = norm > _VANISHED * before
        done.append(vector_N / norm if keep else np.zeros_like(vector_N))
    left_P = np.concatenate(done).astype(np.float32)
    # The right factor is then computed with the left factor that receivers decode.
    from_bf16(bf16_of(left_P), left_P)
    return left_P.reshape(rows_KN.shape)


def _dot(one_N: npt.NDArray[np.float64], other_N: npt.NDArray[np.float64]) -> np.float64:
    terms_N1 = (one_N * other_N)[:, None]
    _sum_rows(terms_N1)
    return terms_N1[0, 0]


def _product(left_KN: F32, right_KM: F32) -> F32:
    """The product of left, transposed, and right, fp32 [N, M]; products are added one after the
    other."""
    with np.errstate(all="ignore"):
        out_NM = left_KN[0][:, None] * right_KM[0]
        for left_N, right_M in zip(left_KN[1:], right_KM[1:], strict=True):
            out_NM += left_N[:, None] * right_M
    return out_NM


@cache
def _basis() -> F32:
    """The constant basis, fp32 [K, M]: random numbers in [-1, 1)."""
    seed = xxhash.xxh3_64_intdigest(b"powersgd")
    bits_1P = np.empty((1, RANK * SIDE), np.uint32)
    counted_bits(np.array([seed], np.uint64), bits_1P)
    unit_P = (bits_1P[0] >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23)
    return (unit_P - np.float32(1)).reshape(RANK, SIDE)
