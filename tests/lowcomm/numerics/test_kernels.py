"""The compiled loops beside numpy's: the same bits of any values, lengths and places in memory.

Only of NaNs it is not defined which bits they have, so they must be in the same places. What the
operations mean is tested in test_outer.py.
"""

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instruction_sets import INSTRUCTION_SETS, InstructionSet, build, load
from lowcomm.numerics.kernels import F32, F64, NORM_ELEMENTS, Loops, NumpyLoops, loops

SPECIAL = np.array(
    [0.0, -0.0, 1e-45, -1.1754942e-38, 1.1754944e-38, 3.4028235e38, np.inf, -np.inf, np.nan],
    np.float32,
)
"""Zeros, denormals, the borders of normal numbers, infinities, a NaN."""
LR, BETA = np.float32(0.7), np.float32(0.9)
LARGE = (2 << 20) + 333
"""Elements of an array that is written past the caches (8 MiB and more)."""
GUARD = np.float32(-12345.0)
MEAN_MAX = 70

Call = Callable[[Loops, list[F32]], None]
"""Does an operation on six arrays; the last is its `out`."""


def weights(count: int) -> F32:
    return (np.arange(count, 0, -1) / np.float32(count)).astype(np.float32)


def mean_of(count: int) -> Call:
    def call(on: Loops, arrays: list[F32]) -> None:
        contributions = [arrays[k % 5] for k in range(count)]
        on.weighted_mean(contributions, weights(count), np.float32(0.37), arrays[5])

    return call


def trimmed_of(count: int, trimmed: int) -> Call:
    def call(on: Loops, arrays: list[F32]) -> None:
        contributions = [arrays[k % 5] for k in range(count)]
        on.trimmed_mean(contributions, trimmed, np.float32(0.37), arrays[5])

    return call


OPERATIONS: dict[str, Call] = {
    "copy": lambda on, of: on.copy(of[0], of[5]),
    "difference": lambda on, of: on.difference(of[0], of[1], of[5]),
    "difference onto the left": lambda on, of: on.difference(of[0], of[1], of[0]),
    "difference onto the right": lambda on, of: on.difference(of[0], of[1], of[1]),
    "descent": lambda on, of: on.descent(of[0], of[1], LR, of[5]),
    "descent in place": lambda on, of: on.descent(of[0], of[1], LR, of[0]),
    "step": lambda on, of: on.nesterov_step(of[0], of[1], of[2], LR, BETA, of[4], of[5]),
    "step in place": lambda on, of: on.nesterov_step(of[0], of[1], of[2], LR, BETA, of[0], of[2]),
    "pull": lambda on, of: on.heavy_ball_step(of[0], of[1], of[2], LR, BETA, of[4], of[5]),
    "pull in place": lambda on, of: on.heavy_ball_step(of[0], of[1], of[2], LR, BETA, of[0], of[2]),
    **{f"mean of {count}": mean_of(count) for count in (*range(1, 18), MEAN_MAX)},
    **{
        f"trimmed mean of {count} without {2 * trimmed}": trimmed_of(count, trimmed)
        for count, trimmed in ((1, 0), (2, 0), (3, 1), (5, 1), (8, 3), (17, 4))
    },
}


def values(size: int, seed: int, *, any_words: bool = False) -> F32:
    """Numbers near 1 and special ones, or any 32 bits."""
    random = np.random.default_rng(seed)
    if any_words:
        return random.integers(0, 1 << 32, size, np.uint32).view(np.float32)
    made = random.standard_normal(size, np.float32)
    places = random.integers(0, 12, size) == 0
    made[places] = random.choice(SPECIAL, int(places.sum()))
    return made


@lru_cache(maxsize=1)
def inputs(size: int, seed: int, *, any_words: bool = False) -> list[F32]:
    """The values of five arrays. Large ones are kept for the next operation: to draw them takes
    longer than to work on them."""
    return [values(size, seed + k, any_words=any_words) for k in range(5)]


def same(mine: F32, other: F32) -> bool:
    differ = mine.view(np.uint32) != other.view(np.uint32)
    return bool((np.isnan(mine[differ]) & np.isnan(other[differ])).all())


def after(
    on: Loops, call: Call, size: int, places: Sequence[int], given_values: Sequence[F32]
) -> list[F32]:
    """The arrays after the call. Each began at its place in a larger one that must stay as it is.

    (A place counts elements behind a cache line's border.)
    """
    whole = [np.full(size + 64, GUARD, np.float32) for _ in range(6)]
    starts = [
        (-array.ctypes.data % 64) // 4 + place for array, place in zip(whole, places, strict=True)
    ]
    arrays = [array[at : at + size] for array, at in zip(whole, starts, strict=True)]
    for array, given_array in zip(arrays, given_values, strict=False):
        array[:] = given_array
    call(on, arrays)
    for array, at in zip(whole, starts, strict=True):
        assert (array[:at] == GUARD).all()
        assert (array[at + size :] == GUARD).all()
    return arrays


def check(
    on: Loops, call: Call, size: int, places: Sequence[int], seed: int, *, any_words: bool = False
) -> None:
    made = inputs(size, seed, any_words=any_words)
    mine = after(on, call, size, places, made)
    other = after(NumpyLoops(), call, size, places, made)
    for one, two in zip(mine, other, strict=True):
        assert same(one, two)


def test_where_there_is_a_compiler_the_loops_are_compiled() -> None:
    """Else the tests below would compare numpy with itself."""
    assert not isinstance(loops(), NumpyLoops) or shutil.which("cc") is None


def test_where_nothing_is_compiled_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "lowcomm.numerics._arithmetic", None
    )  # As if there were no such file.
    assert isinstance(loops(), NumpyLoops)


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=40)  # Of each of 34 operations, most of which are means and share loops.
@given(
    seed=st.integers(0, 1000),
    size=st.integers(0, 300) | st.integers(2000, 2200),
    places=st.lists(st.integers(0, 15), min_size=6, max_size=6),
    any_words=st.booleans(),
)
def test_both_make_the_same_bits(
    name: str, seed: int, size: int, places: list[int], any_words: bool
) -> None:
    check(loops(), OPERATIONS[name], size, places, seed, any_words=any_words)


def squares_of(on: Loops, values_P: F32) -> bytes:
    out_R = np.full(-(-values_P.size // NORM_ELEMENTS), -1.0)
    on.block_squares(values_P, out_R)
    return out_R.tobytes()


@given(
    seed=st.integers(0, 1000),
    size=st.integers(0, 3 * NORM_ELEMENTS) | st.sampled_from([NORM_ELEMENTS, 70 * NORM_ELEMENTS]),
    place=st.integers(0, 15),
)
def test_both_make_the_same_squares(seed: int, size: int, place: int) -> None:
    finite = values(size + place, seed)
    finite[~np.isfinite(finite)] = 3e38  # Of a NaN it is not defined which one it is.
    assert squares_of(loops(), finite[place:]) == squares_of(NumpyLoops(), finite[place:])


@given(
    words=st.lists(st.integers(0, (1 << 32) - 1), max_size=20),
    size=st.sampled_from([0, 1, 2047, 2048, 2049, 5000]),
    place=st.integers(0, 15),
)
def test_both_find_what_is_not_finite(words: list[int], size: int, place: int) -> None:
    """Words of any bits, at the end: behind blocks in which all is well, or among few."""
    values_P = np.ones(place + size + len(words), np.float32)
    values_P[place + size :] = np.array(words, np.uint32).view(np.float32)
    values_P = values_P[place:]
    expected = all(word & 0x7F800000 != 0x7F800000 for word in words)
    assert loops().all_finite(values_P) is expected
    assert NumpyLoops().all_finite(values_P) is expected


@pytest.mark.parametrize("word", [0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF])
@pytest.mark.parametrize("at", [0, 2047, 2048, 4999])
def test_one_word_that_is_no_number_is_found_wherever_it_is(word: int, at: int) -> None:
    values_P = np.full(5000, np.finfo(np.float32).max)
    assert loops().all_finite(values_P)
    values_P.view(np.uint32)[at] = word
    assert not loops().all_finite(values_P)
    assert not NumpyLoops().all_finite(values_P)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("places", [(0,) * 6, (1, 2, 3, 4, 5, 15)])
def test_both_make_the_same_bits_of_large_arrays(name: str, places: tuple[int, ...]) -> None:
    check(loops(), OPERATIONS[name], LARGE, places, seed=7)


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    compiled = loops()
    if isinstance(compiled, NumpyLoops):
        pytest.skip("no compiler: nothing is compiled")
    four, three = np.zeros(4, np.float32), np.zeros(3, np.float32)
    bytes_3 = cast(F32, np.zeros(3, np.uint8))
    unaligned = np.frombuffer(bytearray(17), np.float32, offset=1)
    one_weight = np.ones(1, np.float32)
    for wrong in (three, unaligned, bytes_3):
        calls: list[Callable[[], None]] = [
            lambda wrong=wrong: compiled.copy(four, wrong),
            lambda wrong=wrong: compiled.difference(four, wrong, four),
            lambda wrong=wrong: compiled.descent(four, wrong, LR, four),
            lambda wrong=wrong: compiled.nesterov_step(four, four, wrong, LR, BETA, four, four),
            lambda wrong=wrong: compiled.nesterov_step(four, four, four, LR, BETA, four, wrong),
            lambda wrong=wrong: compiled.heavy_ball_step(four, wrong, four, LR, BETA, four, four),
            lambda wrong=wrong: compiled.weighted_mean([wrong], one_weight, LR, four),
            lambda wrong=wrong: compiled.weighted_mean([four], wrong, LR, four),
            lambda wrong=wrong: compiled.trimmed_mean([four, wrong], 0, LR, four),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"fp32 arrays of one size|one weight"):
                call()
    for wrong in (unaligned, bytes_3):
        with pytest.raises(ValueError, match="fp32 arrays of one size"):
            compiled.all_finite(wrong)
    with pytest.raises(ValueError, match="one weight"):
        compiled.weighted_mean([], np.ones(0, np.float32), LR, four)
    for trimmed in (-1, 1, 2):
        with pytest.raises(ValueError, match="nothing would be left"):
            compiled.trimmed_mean([four, four], trimmed, LR, four)
    for sums in (np.zeros(2), np.frombuffer(bytearray(9), np.float64, 1, 1), four[:0]):
        with pytest.raises(ValueError, match="one fp64 sum"):
            compiled.block_squares(four, cast(F64, sums))
    with pytest.raises(TypeError):
        compiled.weighted_mean([cast(F32, 3)], one_weight, LR, four)


SETS = [pytest.param(one, id=one.name) for one in INSTRUCTION_SETS]


@pytest.mark.parametrize("instruction_set", SETS)
def test_every_cpu_makes_the_same_bits(instruction_set: InstructionSet, tmp_path: Path) -> None:
    """The loader takes one of these by itself, so each is built alone here."""
    one_cpu = built(tmp_path, instruction_set)
    for call in OPERATIONS.values():
        check(one_cpu, call, 5003, (1, 2, 3, 4, 5, 6), seed=3)
    normal = np.random.default_rng(0).standard_normal(9001, np.float32)
    assert squares_of(one_cpu, normal) == squares_of(NumpyLoops(), normal)
    check(one_cpu, OPERATIONS["difference"], LARGE, (1, 2, 3, 4, 5, 6), seed=3)


@pytest.mark.parametrize("instruction_set", SETS)
def test_no_mean_goes_through_the_stack(instruction_set: InstructionSet, tmp_path: Path) -> None:
    """Sums that lie on the stack cost more than everything else: 1.9 GB/s of two contributions with
    AVX2 where 8.9 are possible, and less than numpy."""
    if not instruction_set.is_usable():
        pytest.skip("no compiler, or not for this CPU")
    # Baseline: nine contributions at once have more weights than there are registers.
    assert stack_stores("weighted_mean", instruction_set, tmp_path) < 40
    assert stack_stores("trimmed_mean", instruction_set, tmp_path) < 10


def stack_stores(function: str, instruction_set: InstructionSet, folder: Path) -> int:
    """Instructions of this loop that store a vector register on the stack."""
    files = build(
        folder, instruction_set, only="lowcomm.numerics._arithmetic", flags=("-S",), suffix=".s"
    )
    code = files["lowcomm.numerics._arithmetic"].read_text().partition(f"\n{function}:\n")[2]
    assert code, "the loop is in a function of its own"
    return len(re.findall(r"%[xyz]mm\d+, -?\d*\(%r[sb]p", code.partition(".cfi_endproc")[0]))


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Loops:
    fusing = InstructionSet("fma", "fma", ("FMA3",), ())
    return built(tmp_path_factory.mktemp("fused"), fusing, "-mfma", "-ffp-contract=fast")


@pytest.mark.parametrize("name", ["descent", "step", "step in place", "mean of 3"])
def test_fused_operations_would_be_noticed(name: str, fused: Loops) -> None:
    with pytest.raises(AssertionError):
        check(fused, OPERATIONS[name], 5003, (0,) * 6, seed=3)


def built(folder: Path, instruction_set: InstructionSet, *flags: str) -> Loops:
    """The loops for one kind of CPU, as this project builds them but for `flags`."""
    if not instruction_set.is_usable():
        pytest.skip(f"no compiler, or this CPU has no {instruction_set.name}")
    files = build(folder, instruction_set, only="lowcomm.numerics._arithmetic", flags=flags)
    return cast(Loops, load(files["lowcomm.numerics._arithmetic"]))
