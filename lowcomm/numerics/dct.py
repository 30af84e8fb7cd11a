"""Discrete cosine transform (DCT) of tiles with the same bits on every CPU; FlexDeMo uses it.

Orthonormal DCT-II and its inverse by Lee's recursion: additions, subtractions and multiplications
by constants, each with one rounding, in a fixed order. So the bits depend neither on the number of
tiles nor on how tiles are divided among calls; a matrix product would sum in the order that its
library chooses. _cosines.c has the same loops compiled, if a C compiler was present at
installation; `lowcomm.flexdemo.torch_replicators` has them in torch. Must NOT use a library's
transform.

Shapes: N tiles of X values; a tile is a vector of `chunk` values, or a matrix of chunk x chunk
values, row by row. M vectors of C values side by side. `chunk` is a power of two.
"""

import math
from functools import cache, lru_cache
from importlib import import_module
from typing import Protocol, cast

import numpy as np

from lowcomm.numerics.kernels import F32

_VECTORS_AT_ONCE = 1024
"""Vectors that are transformed at once: their intermediate arrays stay in the L2 cache, 3 x faster
than all vectors at once (measured)."""


class DctLoops(Protocol):
    """The interface of the compiled loops."""

    def each_axis(
        self,
        tiles_NX: F32,
        out_NX: F32,
        constants: F32,
        size: int,
        dimensions: int,
        inverse: bool,
        /,
    ) -> None:
        """Transform each tile of `tiles_NX` into `out_NX`. Arrays are C-contiguous; `constants` is
        the result of `_constants`. Does not hold the GIL."""
        ...


@cache
def compiled() -> DctLoops | None:
    """The compiled loops; None if this installation has none."""
    try:
        return cast(DctLoops, import_module("lowcomm.numerics._cosines"))
    except ImportError:
        return None


def transform(tiles_NX: F32, chunk: int) -> F32:
    """Coefficients of each tile, fp32 [N, X], in the tile's own layout."""
    return each_axis(tiles_NX, chunk, inverse=False, loops=compiled())


def inverse(tiles_NX: F32, chunk: int) -> F32:
    """Values of the tiles with these coefficients, fp32 [N, X]: the inverse of `transform`."""
    return each_axis(tiles_NX, chunk, inverse=True, loops=compiled())


def each_axis(tiles_NX: F32, chunk: int, *, inverse: bool, loops: DctLoops | None) -> F32:
    """The transform of each tile along all its axes, or the inverse one, fp32 [N, X]. If `loops` is
    None, numpy alone computes it."""
    dimensions = 1 if tiles_NX.shape[1] == chunk else 2
    if loops is not None:
        tiles_NX = np.ascontiguousarray(tiles_NX)
        out_NX = np.empty_like(tiles_NX)
        loops.each_axis(tiles_NX, out_NX, _constants(chunk), chunk, dimensions, inverse)
        return out_NX
    along = _inverse if inverse else _transform
    out_NX = np.empty_like(tiles_NX)
    step = max(1, _VECTORS_AT_ONCE // (1 if dimensions == 1 else chunk))
    for at in range(0, len(tiles_NX), step):
        some_NX, out = tiles_NX[at : at + step], out_NX[at : at + step]
        if dimensions == 1:
            out[:] = along(np.ascontiguousarray(some_NX.T)).T
            continue
        some_NRC = some_NX.reshape(-1, chunk, chunk)
        rows = along(some_NRC.transpose(1, 0, 2).reshape(chunk, -1)).reshape(chunk, -1, chunk)
        both = along(rows.transpose(2, 1, 0).reshape(chunk, -1)).reshape(chunk, -1, chunk)
        out[:] = both.transpose(1, 2, 0).reshape(out.shape)
    return out_NX


@lru_cache(maxsize=16)
def halving(size: int) -> F32:
    """Lee's factors for one halving of a vector of `size` values, fp32 [size / 2]."""
    angles = [(2 * k + 1) * math.pi / (2 * size) for k in range(size // 2)]
    return np.array([1 / (2 * math.cos(angle)) for angle in angles], np.float32)


@lru_cache(maxsize=16)
def scaling(size: int) -> F32:
    """Factors that make the transform orthonormal, fp32 [size]."""
    return np.array([math.sqrt((1 if k == 0 else 2) / size) for k in range(size)], np.float32)


@lru_cache(maxsize=16)
def _constants(size: int) -> F32:
    """`scaling` for `size` values, then `halving` for `size`, size / 2, .. 2 values, fp32 [2 size -
    1]."""
    sizes = [size >> level for level in range(size.bit_length() - 1)]
    return np.concatenate([scaling(size), *(halving(each) for each in sizes)])


def _transform(values_CM: F32) -> F32:
    size, vectors = values_CM.shape
    parts = values_CM[None]
    while parts.shape[1] > 1:
        count, length, half = len(parts), parts.shape[1], parts.shape[1] // 2
        first, last = parts[:, :half], parts[:, : half - 1 : -1]
        halves = np.empty((count, 2, half, vectors), np.float32)
        np.add(first, last, out=halves[:, 0])
        np.subtract(first, last, out=halves[:, 1])
        np.multiply(halves[:, 1], halving(length)[:, None], out=halves[:, 1])
        parts = halves.reshape(2 * count, half, vectors)
    while len(parts) > 1:
        halves = parts.reshape(-1, 2, *parts.shape[1:])
        joined = np.empty((len(halves), parts.shape[1], 2, vectors), np.float32)
        joined[:, :, 0] = halves[:, 0]
        np.add(halves[:, 1, :-1], halves[:, 1, 1:], out=joined[:, :-1, 1])
        joined[:, -1, 1] = halves[:, 1, -1]
        parts = joined.reshape(len(halves), -1, vectors)
    return parts[0] * scaling(size)[:, None]


def _inverse(values_CM: F32) -> F32:
    size, vectors = values_CM.shape
    parts = (values_CM * scaling(size)[:, None])[None]
    while parts.shape[1] > 1:
        count, half = len(parts), parts.shape[1] // 2
        halves = np.empty((count, 2, half, vectors), np.float32)
        halves[:, 0] = parts[:, ::2]
        halves[:, 1, 0] = parts[:, 1]
        np.add(parts[:, 1:-1:2], parts[:, 3::2], out=halves[:, 1, 1:])
        parts = halves.reshape(2 * count, half, vectors)
    while len(parts) > 1:
        halves = parts.reshape(-1, 2, *parts.shape[1:])
        half = parts.shape[1]
        second = halves[:, 1] * halving(2 * half)[:, None]
        joined = np.empty((len(halves), 2 * half, vectors), np.float32)
        np.add(halves[:, 0], second, out=joined[:, :half])
        np.subtract(halves[:, 0], second, out=joined[:, : half - 1 : -1])
        parts = joined
    return parts[0]
