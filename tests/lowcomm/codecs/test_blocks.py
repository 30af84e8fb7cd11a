"""The compiled loops beside the numpy code that they stand for: the same bytes, the same bits."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.instruction_sets import INSTRUCTION_SETS, InstructionSet, build, load
from lowcomm.codecs.blocks import BlockCodec, Kernels, compiled
from lowcomm.codecs.fp4 import Fp4
from lowcomm.codecs.int4 import Int4
from lowcomm.codecs.int8 import Int8
from lowcomm.numerics.operations import F32
from tests.lowcomm.codecs.samples import SPECIAL, encoded, make_values

CODECS = (Int8, Int4, Fp4)
BLOCK = 256
HALVES = 2.0 ** np.arange(-9, 1)


def plain(made: Callable[[], BlockCodec]) -> BlockCodec:
    """The codec as it is where there was no compiler."""
    one = made()
    one.kernels = None
    return one


def words(one: BlockCodec, payload: bytes, elements: int) -> np.ndarray:
    out = np.empty(elements, np.float32)
    one.decode(payload, out)
    return out.view(np.uint32)


def check(made: Callable[[], BlockCodec], values: F32) -> None:
    payload = encoded(made(), values)
    assert payload == encoded(plain(made), values)
    mine, other = (words(one, payload, values.size) for one in (made(), plain(made)))
    assert (mine == other).all()


def test_where_there_is_a_compiler_the_loops_are_compiled() -> None:
    """Else the tests below would compare numpy with itself."""
    assert compiled("int8") is not None or shutil.which("cc") is None


@pytest.mark.parametrize("made", CODECS)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(0, 5 * BLOCK),
    spread=st.sampled_from([0, 3, 30, 120]),
    places=st.lists(st.tuples(st.integers(0, 5 * BLOCK), st.sampled_from(SPECIAL)), max_size=6),
)
def test_both_make_the_same_of_any_values(
    made: type[BlockCodec], seed: int, size: int, spread: int, places: list[tuple[int, int]]
) -> None:
    with np.errstate(all="ignore"):
        check(made, make_values(size, seed, spread, places))


@pytest.mark.parametrize("made", CODECS)
def test_both_make_the_same_of_any_words_and_of_every_border(made: type[BlockCodec]) -> None:
    random = np.random.default_rng(7)
    check(made, random.integers(0, 1 << 32, 300 * BLOCK, np.uint32).view(np.float32))
    for levels in (127, 7):
        between = random.integers(-2 * levels, 2 * levels + 1, (40, BLOCK)) / 2
        between[:, 0] = levels
        check(made, between.astype(np.float32).reshape(-1))
    near = random.choice([1, 1.5, np.nextafter(np.float32(1.5), np.float32(0)), -1, -1.5], 64)
    powers = np.tile(np.outer(HALVES, near).reshape(-1), 2)[: 4 * BLOCK].reshape(4, BLOCK)
    powers[:, 0] = 1
    check(made, powers.astype(np.float32).reshape(-1))


@pytest.mark.parametrize("made", CODECS)
@pytest.mark.parametrize("scale", [None, -1000.0, -3e38, 1e-40, -np.inf])
def test_any_bytes_decode_to_the_same(made: type[BlockCodec], scale: float | None) -> None:
    """A stranger chooses them: scales may be anything, each of them or all alike."""
    size = 64 * BLOCK
    payload = np.random.default_rng(3).bytes(made().encoded_bytes(size))
    if scale is not None:
        records = np.frombuffer(payload, made.record).copy()
        records["scale"] = scale
        payload = records.tobytes()
    mine, other = (words(one, payload, size) for one in (made(), plain(made)))
    bad = np.isnan(other.view(np.float32))
    assert (np.isnan(mine.view(np.float32)) == bad).all()
    assert (mine == other)[~bad].all()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS, ids=lambda one: one.name)
def test_every_cpu_makes_the_same_bytes(instruction_set: InstructionSet, tmp_path: Path) -> None:
    """The loader takes one of these by itself, so each is built alone here."""
    if not instruction_set.is_usable():
        pytest.skip(f"no compiler, or this CPU has no {instruction_set.name}")
    files = build(tmp_path, instruction_set, only="lowcomm.codecs._kernels")
    loops = load(files["lowcomm.codecs._kernels"])
    for made in CODECS:

        def one_cpu(made: type[BlockCodec] = made) -> BlockCodec:
            one = made()
            encode, decode = (getattr(loops, f"{one.name}_{way}") for way in ("encode", "decode"))
            one.kernels = Kernels(encode, decode)
            return one

        check(one_cpu, np.random.default_rng(5).standard_normal(40 * BLOCK + 7, np.float32))
        random = np.random.default_rng(7)
        check(one_cpu, random.integers(0, 1 << 32, 300 * BLOCK, np.uint32).view(np.float32))


@pytest.mark.parametrize("name", ["int8", "int4", "fp4"])
def test_arrays_of_other_sizes_are_refused(name: str) -> None:
    kernels = compiled(name)
    assert isinstance(kernels, Kernels) or shutil.which("cc") is None
    if kernels is None:
        return
    values, records = np.zeros(BLOCK, np.float32), np.zeros(10, np.uint8)
    with pytest.raises(ValueError, match="not of the same blocks"):
        kernels.encode(values, records)
    with pytest.raises(ValueError, match="not of the same blocks"):
        kernels.decode(records, values)
