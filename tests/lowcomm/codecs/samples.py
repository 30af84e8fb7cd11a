"""Values for codecs to be tried on, and the error that each codec states.

Must NOT hold tests.
"""

from collections.abc import Callable, Mapping

import numpy as np
from hypothesis import strategies as st

from lowcomm.codecs.codec import Codec
from lowcomm.codecs.places import CHUNK
from lowcomm.codecs.twobit import BORDER
from lowcomm.numerics.kernels import F32, F64

SPECIAL = (
    *(0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000),  # 0, denormals
    *(0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x477FE000, 0x477FF000),  # 1, largest ones
    *(0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFFFFFFF),  # inf, NaN
)
FINITE = SPECIAL[:12]


def make_values(size: int, seed: int, spread: int, places: list[tuple[int, int]]) -> F32:
    """Normal numbers whose scale goes up and down by 2**spread, and given words at given places."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(size, np.float32)
    if spread:
        values *= np.exp2(random.integers(-spread, spread + 1, size)).astype(np.float32)
    words = values.view(np.uint32)
    for place, word in places:
        if size:
            words[place % size] = word
    return values


def some_values(grain: int, *, special: tuple[int, ...] = SPECIAL) -> st.SearchStrategy[F32]:
    """Of any length from 0 on to a little over two blocks."""
    edges = [0, 1, 2, 3, grain - 1, grain, grain + 1, 2 * grain, 2 * grain + 7]
    return st.builds(
        make_values,
        st.one_of(st.sampled_from(edges), st.integers(0, 2 * grain + 7)),
        st.integers(0, 1000),
        st.sampled_from([0, 0, 3, 30]),
        st.lists(st.tuples(st.integers(0, 2 * grain + 6), st.sampled_from(special)), max_size=4),
    )


def encoded(one: Codec, values: F32) -> bytes:
    out = bytearray(one.encoded_bytes(values.size))
    one.encode(values, out)
    return bytes(out)


def there_and_back(one: Codec, values: F32) -> F32:
    out = np.full_like(values, 7)
    one.decode(encoded(one, values), out)
    return out


def blocks(values: F32, grain: int) -> list[F32]:
    return [values[at : at + grain] for at in range(0, values.size, grain)]


def largest(values: F32, grain: int) -> F64:
    """For each value the largest magnitude of its block."""
    peaks = [np.full(block.size, np.abs(block).max()) for block in blocks(values, grain)]
    return np.concatenate([np.zeros(0), *peaks]).astype(np.float64)


def _scaled(levels: int) -> Callable[[F32], F64]:
    def bound(values: F32) -> F64:
        peak = largest(values, 256)
        exact = np.abs(values.astype(np.float64))
        return np.where(peak < 2.0**-100, exact, peak / levels * 0.5 + exact * 2.0**-22)

    return bound


def _fp4(values: F32) -> F64:
    peak = largest(values, 256)
    exact = np.abs(values.astype(np.float64))
    return np.where(peak < 2.0**-100, exact, np.maximum(exact / 3, peak * 2.0**-7) * (1 + 2.0**-20))


def _blockwise(grain: int, bound: Callable[[F64], F64]) -> Callable[[F32], F64]:
    """A bound that looks at a block at a time."""

    def of_all(values: F32) -> F64:
        bounds = [bound(block.astype(np.float64)) for block in blocks(values, grain)]
        return np.concatenate([np.zeros(0), *bounds])

    return of_all


def _matrix(block: F64) -> F64:
    """All of it: bf16 columns are orthonormal within a hundredth."""
    return np.full(block.size, np.sqrt(np.square(block).sum()) * 1.01)


def _from_mean(block: F64) -> F64:
    magnitude = np.abs(block)
    mean = magnitude.mean()
    return np.abs(magnitude - mean) + mean * 2.0**-23 + 2.0**-149


def _two_bits(block: F64) -> F64:
    mean, spread = block.mean(), BORDER * block.std()
    return _bin_widths(block, np.array([mean - spread, mean, mean + spread]))


def _two_bits_of_the_largest(block: F64) -> F64:
    """16 chunks: of the 64 largest of each the magnitude's bin, of the others all."""
    bound, sent = np.abs(block), np.zeros(block.size, np.bool_)
    for start in range(0, block.size, CHUNK):
        sent[start + np.argsort(-bound[start : start + CHUNK], kind="stable")[:64]] = True
    bound[sent] = _bin_widths(bound[sent], bound[sent].mean(keepdims=True))
    return bound


def _bin_widths(values: F64, borders: F64) -> F64:
    """For each value how wide its bin is; the outer bins end at the last values. Rounding may put
    what is at a border into either bin."""
    first, last = float(values.min()), float(values.max())
    slack = 2.0**-23 * max(last, -first) + 2.0**-150
    widths = np.diff([first, *np.clip(borders, first, last), last])
    below = np.searchsorted(borders, values - slack)
    above = np.searchsorted(borders, values + slack)
    return np.maximum(widths[below], widths[above]) + 2 * slack


BOUNDS: Mapping[str, Callable[[F32], F64]] = {
    "fp32": lambda values: np.zeros(values.size),
    "bf16": lambda values: np.abs(values.astype(np.float64)) * 2.0**-8 + 2.0**-134,
    "fp16": lambda values: np.where(
        np.abs(values) > 65504,
        np.abs(values.astype(np.float64)) - 65504,
        np.abs(values.astype(np.float64)) * 2.0**-11 + 2.0**-25,
    ),
    "int8": _scaled(127),
    "int4": _scaled(7),
    "fp4": _fp4,
    "2bit": _blockwise(1024, _two_bits),
    "ternary": lambda values: largest(values, 1024) * (1 + 2.0**-20),
    "sign": _blockwise(1024, _from_mean),
    "topk": lambda values: np.abs(values.astype(np.float64)),
    "topk2bit": _blockwise(16 * CHUNK, _two_bits_of_the_largest),
    "powersgd": _blockwise(1 << 16, _matrix),
}
"""The largest error of each value that the codec's file states."""
BYTES: Mapping[str, tuple[float, int]] = {
    "fp32": (4, 4),
    "bf16": (2, 2),
    "fp16": (2, 2),
    "int8": (260 / 256, 5),
    "int4": (132 / 256, 5),
    "fp4": (132 / 256, 5),
    "2bit": (272 / 1024, 17),
    "ternary": (260 / 1024, 5),
    "sign": (132 / 1024, 5),
    "topk": ((96 + 128) / 4096, 4),
    "topk2bit": ((16 * (96 + 16) + 16) / (16 * 4096), 19),
    "powersgd": (2 * 4 * 512 / 65536, 4),
}
"""Bytes of a value in whole blocks, and of one value alone."""
NAMES = sorted(BYTES)
