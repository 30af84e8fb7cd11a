"""IEEE half precision, 2 bytes a value, rounded to nearest even.

Error: at most 2**-11 of the value, or 2**-25. A finite value beyond 65504 is sent as 65504, so that
no codec makes an infinity; a NaN stays a NaN, an infinity an infinity. numpy's own conversion has
the same results eight times as slowly, and its NaNs depend on the CPU. Must NOT depend on how the
CPU treats denormals: small numbers are made by adding normal numbers.
"""

import numpy as np

from lowcomm.codecs.bits import INFINITY_WORD, MAGNITUDE, U16, U32
from lowcomm.codecs.codec import Payload, WritablePayload, check_size
from lowcomm.numerics.kernels import BLOCK_ELEMENTS, F32

_WIRE = np.dtype("<u2")
_LARGEST_WORD = np.float32(65504).view(np.uint32)
_NORMAL_WORD = np.float32(2.0**-14).view(np.uint32)
"""The smallest normal number of half precision."""
_HALF = np.float32(0.5)
_ROUND_AND_REBASE = np.uint32((0xFFF - (112 << 23)) % 2**32)
"""The rounding term, minus 112, the difference between the exponents' biases, 127 and 15."""


class Fp16:
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "fp16"
    grain = 1
    reducible = True

    def encoded_bytes(self, elements: int) -> int:
        return elements * _WIRE.itemsize

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        assert len(out) == self.encoded_bytes(values_P.size), "out has another size"
        halves_P = np.frombuffer(out, _WIRE)
        scratch = np.empty((3, min(values_P.size, BLOCK_ELEMENTS)), np.uint32)
        for start in range(0, values_P.size, BLOCK_ELEMENTS):
            words = values_P[start : start + BLOCK_ELEMENTS].view(np.uint32)
            one, two, three = scratch[:, : words.size]
            _encode(words, halves_P[start : start + words.size], one, two, three)

    def decode(self, payload: Payload, out_P: F32) -> None:
        check_size(self, payload, out_P.size)
        halves_P = np.frombuffer(payload, _WIRE)
        scratch = np.empty((2, min(out_P.size, BLOCK_ELEMENTS)), np.uint32)
        for start in range(0, out_P.size, BLOCK_ELEMENTS):
            out = out_P[start : start + BLOCK_ELEMENTS].view(np.uint32)
            one, two = scratch[:, : out.size]
            _decode(halves_P[start : start + out.size], out, one, two)


def _encode(words: U32, out: U16, magnitude: U32, half: U32, spare: U32) -> None:
    np.bitwise_and(words, MAGNITUDE, out=magnitude)
    void_N = np.empty(0, np.intp)
    void_bits_N = np.empty(0, np.uint32)
    if magnitude.max() > _LARGEST_WORD:
        void_N = np.flatnonzero(magnitude >= INFINITY_WORD)
        is_nan_N = magnitude[void_N] > INFINITY_WORD
        void_bits_N = np.where(is_nan_N, np.uint32(0x7E00), np.uint32(0x7C00))
        magnitude[magnitude > _LARGEST_WORD] = _LARGEST_WORD
    np.right_shift(magnitude, np.uint32(13), out=half)
    np.bitwise_and(half, np.uint32(1), out=half)
    np.add(half, _ROUND_AND_REBASE, out=half)
    np.add(half, magnitude, out=half)
    np.right_shift(half, np.uint32(13), out=half)
    small = magnitude < _NORMAL_WORD
    if small.any():
        # The last bit of an fp32 number at 0.5 is worth 2**-24, as in a small half: the sum rounds.
        np.add(magnitude.view(np.float32), _HALF, out=spare.view(np.float32), where=small)
        np.subtract(spare, _HALF.view(np.uint32), out=half, where=small)
    half[void_N] = void_bits_N
    np.right_shift(words, np.uint32(16), out=spare)
    np.bitwise_and(spare, np.uint32(0x8000), out=spare)
    np.bitwise_or(half, spare, out=half)
    np.copyto(out, half, casting="unsafe")


def _decode(halves: U16, out: U32, magnitude: U32, sign: U32) -> None:
    np.copyto(sign, halves)
    np.bitwise_and(sign, np.uint32(0x7FFF), out=magnitude)
    np.bitwise_and(sign, np.uint32(0x8000), out=sign)
    np.left_shift(sign, np.uint32(16), out=sign)
    void = magnitude.max() >= 0x7C00
    np.left_shift(magnitude, np.uint32(13), out=magnitude)
    small = magnitude < np.uint32(0x400 << 13)
    np.add(magnitude, np.uint32(112 << 23), out=out)
    if small.any():
        # 2**-14 with these mantissa bits, minus 2**-14: exact, and without a denormal number.
        spare = (magnitude + _NORMAL_WORD).view(np.float32)
        np.subtract(spare, _NORMAL_WORD.view(np.float32), out=out.view(np.float32), where=small)
    if void:
        np.bitwise_or(magnitude, INFINITY_WORD, out=out, where=magnitude >= (0x7C00 << 13))
    np.bitwise_or(out, sign, out=out)
