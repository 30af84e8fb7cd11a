"""The cosine transform: what it is by its definition, and that its bits do not depend on cuts."""

import hashlib
import math
import shutil
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from benchmarks.instruction_sets import INSTRUCTION_SETS, InstructionSet, build, load
from lowcomm.numerics import dct
from lowcomm.numerics.dct import halving, inverse, scaling, transform
from lowcomm.numerics.kernels import F32

SIZES = (8, 16, 32, 64)


def basis(size: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Row k is the k-th cosine of the orthonormal DCT-II, by its definition in fp64."""
    k, at = np.arange(size)[:, None], np.arange(size)[None]
    scale = np.where(k == 0, math.sqrt(1 / size), math.sqrt(2 / size))
    return scale * np.cos(math.pi * (at + 0.5) * k / size)


def noise(*shape: int) -> F32:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_vectors_and_matrices_are_transformed_by_the_definition(size: int) -> None:
    rows, vectors, tiles = basis(size), noise(5, size), noise(3, size * size)
    assert np.allclose(transform(vectors, size), vectors @ rows.T, atol=1e-5)
    squares = tiles.reshape(-1, size, size)
    expected = rows @ squares @ rows.T
    assert np.allclose(transform(tiles, size).reshape(expected.shape), expected, atol=1e-5)
    back = rows.T @ squares @ rows
    assert np.allclose(inverse(tiles, size).reshape(back.shape), back, atol=2e-4)
    assert np.allclose(inverse(transform(tiles, size), size), tiles, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 17, 40])
def test_a_tile_has_the_same_bits_whichever_stand_beside_it(count: int) -> None:
    tiles = noise(count, 64 * 64)
    for function in (transform, inverse):
        together = function(tiles, 64)
        for at in range(count):
            assert together[at].tobytes() == function(tiles[at : at + 1], 64)[0].tobytes()


def test_a_single_operation_rounds_once() -> None:
    """Of 2 values the transform is a sum, a difference times a constant, and a scale each."""
    values = noise(1, 2)
    first, last = values[0]
    scale, half = scaling(2), halving(2)
    expected = [(first + last) * scale[0], (first - last) * half[0] * scale[1]]
    assert transform(values, 2)[0].tolist() == [float(value) for value in expected]


def test_the_constants_are_the_same_on_every_machine() -> None:
    tables = b"".join(table(size).tobytes() for size in SIZES for table in (halving, scaling))
    assert hashlib.sha256(tables).hexdigest()[:16] == "0bede04c3672a73a"


def test_where_there_is_a_compiler_it_is_compiled() -> None:
    """Else the next test would compare numpy with itself."""
    assert dct.compiled() is not None or shutil.which("cc") is None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("width", [1, 2])
def test_compiled_and_numpy_make_the_same_bits(
    size: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles = noise(21, size**width) * np.float32(1e-39 if size == 8 else 1)  # Denormals, too.
    made = [function(tiles, size).tobytes() for function in (transform, inverse)]
    monkeypatch.setattr(dct, "compiled", lambda: None)
    assert [function(tiles, size).tobytes() for function in (transform, inverse)] == made


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS, ids=lambda one: one.name)
def test_every_cpu_makes_the_same_bits(instruction_set: InstructionSet, tmp_path: Path) -> None:
    """The loader takes one of these by itself, so each is built alone here."""
    if not instruction_set.is_usable():
        pytest.skip(f"no compiler, or this CPU has no {instruction_set.name}")
    files = build(tmp_path, instruction_set, only="lowcomm.numerics._cosines")
    loops = cast(dct.DctLoops, load(files["lowcomm.numerics._cosines"]))
    for size, width, back in product(SIZES, (1, 2), (False, True)):
        tiles = noise(21, size**width)
        made = [
            dct.each_axis(tiles, size, inverse=back, loops=each).tobytes() for each in (loops, None)
        ]
        assert made[0] == made[1], (size, width, back)


def test_what_are_no_tiles_is_refused() -> None:
    loops = dct.compiled()
    if loops is None:
        pytest.skip("no compiler: nothing is compiled")
    tiles, constants = noise(2, 64), dct._constants(8)
    for wrong in (
        (tiles, tiles[:1], constants, 8, 2),
        (tiles, tiles.copy(), constants[1:], 8, 2),
        (tiles, tiles.copy(), constants, 7, 2),
        (tiles, tiles.copy(), constants, 128, 2),
        (noise(3, 5), noise(3, 5), constants, 8, 1),
    ):
        with pytest.raises(ValueError, match="are not tiles"):
            loops.each_axis(*wrong, False)
