"""Operations on single numbers that codecs share: bf16 rounding, and counter-based random numbers.

Must NOT keep state: a random number is a function of a seed and an index, the same on every
machine.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lowcomm.numerics.operations import F32

U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

MAGNITUDE = np.uint32(0x7FFFFFFF)
BF16_SATURATED_WORD = np.uint32(0x7F7F8000)
"""Rounding to bf16 makes an infinity of magnitudes from this word on."""
INFINITY_WORD = np.uint32(0x7F800000)


def to_bf16(values_P: F32, out_P: U16, one_P: U32, two_P: U32) -> None:
    """Write the upper halves of the fp32 words, rounded to nearest even. Overwrites both scratch
    arrays.

    A finite value beyond the largest bf16 number becomes that number; a NaN stays a NaN and keeps
    its sign.
    """
    words_P = values_P.view(np.uint32)
    np.right_shift(words_P, np.uint32(16), out=one_P)
    np.bitwise_and(one_P, np.uint32(1), out=one_P)
    np.add(one_P, np.uint32(0x7FFF), out=one_P)
    np.add(one_P, words_P, out=one_P)
    np.right_shift(one_P, np.uint32(16), out=one_P)
    np.copyto(out_P, one_P, casting="unsafe")
    np.bitwise_and(words_P, MAGNITUDE, out=two_P)
    if two_P.size and two_P.max() >= BF16_SATURATED_WORD:
        wrong_N = np.flatnonzero(two_P >= BF16_SATURATED_WORD)
        magnitude_N, upper_N = two_P[wrong_N], (words_P[wrong_N] >> np.uint32(16))
        upper_N[magnitude_N > INFINITY_WORD] |= np.uint32(0x40)  # A quiet NaN.
        finite_N = magnitude_N < INFINITY_WORD
        upper_N[finite_N] = (upper_N[finite_N] & np.uint32(0x8000)) | np.uint32(0x7F7F)
        out_P[wrong_N] = upper_N


def bf16_of(values_P: F32) -> U16:
    """The result of `to_bf16` for a few values, uint16 [P]."""
    halves_P = np.empty(values_P.size, np.uint16)
    to_bf16(values_P, halves_P, *np.empty((2, values_P.size), np.uint32))
    return halves_P


def from_bf16(halves: npt.NDArray[Any], out: F32) -> None:
    """Decode bf16 halves to fp32, exactly. Both arrays have the same shape."""
    words = out.view(np.uint32)
    np.copyto(words, halves)
    np.left_shift(words, np.uint32(16), out=words)


def counted_bits(seeds_R: npt.NDArray[np.uint64], out_RN: U32) -> None:
    """Write 32 well-mixed bits for each index 0..N-1 of each seed, uint32 [R, N], modulo 2**32.

    The steps are those of `lowbias32` (Ellis and Wellons), taken twice: once for each half of the
    seed. Seeds must be hashes: seeds 1 and 2 would give the same numbers, with indices exchanged.
    """
    lower_R = (seeds_R & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    upper_R = (seeds_R >> np.uint64(32)).astype(np.uint32)
    index_N = np.arange(out_RN.shape[1], dtype=np.uint32)
    spare_RN = np.empty_like(out_RN)
    np.bitwise_xor(index_N, lower_R[:, None], out=out_RN)
    _mix(out_RN, spare_RN)
    np.bitwise_xor(out_RN, upper_R[:, None], out=out_RN)
    _mix(out_RN, spare_RN)


def _mix(words: U32, spare: U32) -> None:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        np.right_shift(words, np.uint32(shift), out=spare)
        np.bitwise_xor(words, spare, out=words)
        np.multiply(words, np.uint32(factor), out=words)
    np.right_shift(words, np.uint32(16), out=spare)
    np.bitwise_xor(words, spare, out=words)
