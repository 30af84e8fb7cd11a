"""Array operations of the outer step: their interface, and their implementation in numpy.

`loops()` returns the compiled operations (_arithmetic.c: one pass over memory) if a C compiler was
present at installation. Otherwise it returns numpy's, which work block by block, with one call for
each operation. Both give the same bits. Must NOT be called with unchecked arrays:
lowcomm/numerics/operations.py checks them, and documents the meaning of each operation.

Shapes: P elements each; fp32, C-contiguous, aligned. K contributions; R blocks of B elements.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

BLOCK_ELEMENTS = 1 << 16
"""Elements of a work block (256 KiB): arrays that several passes touch stay in the L2 cache (1.8 x
faster, measured)."""
NORM_ELEMENTS = 1 << 12
"""Elements of a block that has a norm of its own (lowcomm/numerics/robust_means.py gives the reason
for the number)."""
_SORTED_ELEMENTS = 1 << 13
"""Elements that are sorted at once: those of several contributions stay in the L2 cache."""
_NOT_SIGN = np.int32(0x7FFFFFFF)


class Loops(Protocol):
    """The operations. None of them holds the GIL while it computes."""

    def copy(self, values_P: F32, out_P: F32, /) -> None:
        """out = values; the arrays do not overlap. The compiled operation writes past the
        caches."""
        ...

    def difference(self, left_P: F32, right_P: F32, out_P: F32, /) -> None:
        """out = left - right; `out_P` may be one of the inputs."""
        ...

    def weighted_mean(
        self, contributions: Sequence[F32], weights: F32, inverse: np.float32, out_P: F32, /
    ) -> None:
        """out = (c_1 w_1 + c_2 w_2 + ..) inverse, summed in this order."""
        ...

    def trimmed_mean(
        self, contributions: Sequence[F32], trimmed: int, inverse: np.float32, out_P: F32, /
    ) -> None:
        """out = inverse times the sum, the smallest first, of each element's values without the
        `trimmed` largest and the `trimmed` smallest. NaNs are at the ends, beyond infinities."""
        ...

    def all_finite(self, values_P: F32, /) -> bool:
        """True if no value is infinite or a NaN."""
        ...

    def block_squares(self, values_P: F32, out_R: F64, /) -> None:
        """out[r] = the sum of the squares of the r-th NORM_ELEMENTS values, in fp64 and in the
        order of `ordered_sum`. The last block may have fewer values."""
        ...

    def descent(self, params_P: F32, grad_P: F32, lr: np.float32, next_params_P: F32, /) -> None:
        """next params = params - grad lr; `next_params_P` may be `params_P`."""
        ...

    def nesterov_step(
        self,
        params_P: F32,
        grad_P: F32,
        momentum_P: F32,
        lr: np.float32,
        beta: np.float32,
        next_params_P: F32,
        next_momentum_P: F32,
        /,
    ) -> None:
        """next momentum = momentum beta + grad; next params = params - (next momentum beta + grad)
        lr. Each output may be the array that it replaces."""
        ...

    def heavy_ball_step(
        self,
        params_P: F32,
        target_P: F32,
        momentum_P: F32,
        lr: np.float32,
        beta: np.float32,
        next_params_P: F32,
        next_momentum_P: F32,
        /,
    ) -> None:
        """next momentum = momentum beta + (target - params) lr; next params = params + next
        momentum. Each output may be the array that it replaces."""
        ...


def loops() -> Loops:
    """The fastest implementation that this installation has."""
    try:
        return cast(Loops, import_module("lowcomm.numerics._arithmetic"))
    except ImportError:  # No C compiler was present at installation.
        return NumpyLoops()


class NumpyLoops:
    """The operations in numpy. Each operation on an element rounds by itself: fused operations
    would give other bits on other CPUs."""

    def copy(self, values_P: F32, out_P: F32, /) -> None:
        np.copyto(out_P, values_P)

    def difference(self, left_P: F32, right_P: F32, out_P: F32, /) -> None:
        with np.errstate(all="ignore"):
            np.subtract(left_P, right_P, out=out_P)

    def weighted_mean(
        self, contributions: Sequence[F32], weights: F32, inverse: np.float32, out_P: F32, /
    ) -> None:
        with np.errstate(all="ignore"):
            for block, scratch in _blocks(out_P.size):
                acc = out_P[block]
                np.multiply(contributions[0][block], weights[0], out=acc)
                for contribution, weight in zip(contributions[1:], weights[1:], strict=True):
                    np.multiply(contribution[block], weight, out=scratch)
                    np.add(acc, scratch, out=acc)
                np.multiply(acc, inverse, out=acc)

    def trimmed_mean(
        self, contributions: Sequence[F32], trimmed: int, inverse: np.float32, out_P: F32, /
    ) -> None:
        count = len(contributions)
        room_KB = np.empty((count, min(out_P.size, _SORTED_ELEMENTS)), np.int32)
        with np.errstate(all="ignore"):
            for at in range(0, out_P.size, _SORTED_ELEMENTS):
                out = out_P[at : at + _SORTED_ELEMENTS]
                keys_KB = room_KB[:, : out.size]
                for keys, contribution in zip(keys_KB, contributions, strict=True):
                    _swap_order(contribution[at : at + out.size].view(np.int32), keys)
                _sort(keys_KB)
                for keys in keys_KB[trimmed : count - trimmed]:
                    _swap_order(keys, keys)
                sum_B, *others_KB = keys_KB[trimmed : count - trimmed].view(np.float32)
                for values in others_KB:
                    np.add(sum_B, values, out=sum_B)
                np.multiply(sum_B, inverse, out=out)

    def all_finite(self, values_P: F32, /) -> bool:
        return bool(np.isfinite(values_P).all())

    def block_squares(self, values_P: F32, out_R: F64, /) -> None:
        step = BLOCK_ELEMENTS // NORM_ELEMENTS
        terms_RB = np.empty((min(step, out_R.size), NORM_ELEMENTS), np.float64)
        with np.errstate(all="ignore"):
            for first in range(0, out_R.size, step):
                here_R = out_R[first : first + step]
                at = first * NORM_ELEMENTS
                values = values_P[at : at + here_R.size * NORM_ELEMENTS]
                terms_P = terms_RB[: here_R.size].reshape(-1)
                np.multiply(values, values, out=terms_P[: values.size], dtype=np.float64)
                terms_P[values.size :] = 0
                here_R[:] = ordered_sum(terms_RB[: here_R.size])

    def descent(self, params_P: F32, grad_P: F32, lr: np.float32, next_params_P: F32, /) -> None:
        with np.errstate(all="ignore"):
            for block, scratch in _blocks(params_P.size):
                np.multiply(grad_P[block], lr, out=scratch)
                np.subtract(params_P[block], scratch, out=next_params_P[block])

    def nesterov_step(
        self,
        params_P: F32,
        grad_P: F32,
        momentum_P: F32,
        lr: np.float32,
        beta: np.float32,
        next_params_P: F32,
        next_momentum_P: F32,
        /,
    ) -> None:
        with np.errstate(all="ignore"):
            for block, scratch in _blocks(params_P.size):
                grad, momentum = grad_P[block], next_momentum_P[block]
                _move(momentum_P[block], grad, beta, momentum)
                _move(momentum, grad, beta, scratch)
                np.multiply(scratch, lr, out=scratch)
                np.subtract(params_P[block], scratch, out=next_params_P[block])

    def heavy_ball_step(
        self,
        params_P: F32,
        target_P: F32,
        momentum_P: F32,
        lr: np.float32,
        beta: np.float32,
        next_params_P: F32,
        next_momentum_P: F32,
        /,
    ) -> None:
        with np.errstate(all="ignore"):
            for block, scratch in _blocks(params_P.size):
                params, momentum = params_P[block], next_momentum_P[block]
                np.subtract(target_P[block], params, out=scratch)
                np.multiply(scratch, lr, out=scratch)
                _move(momentum_P[block], scratch, beta, momentum)
                np.add(params, momentum, out=next_params_P[block])


def clipped_nesterov_step(
    params_P: F32,
    grad_P: F32,
    momentum_P: F32,
    next_params_P: F32,
    next_momentum_P: F32,
    *,
    lr: np.float32,
    beta: np.float32,
    clip: np.float32,
) -> None:
    """`Loops.nesterov_step` with each element of the next momentum clipped to [-clip, clip]. An
    option, so only numpy implements it."""
    with np.errstate(all="ignore"):
        for block, scratch in _blocks(params_P.size):
            grad, momentum = grad_P[block], next_momentum_P[block]
            _move(momentum_P[block], grad, beta, momentum)
            np.minimum(momentum, clip, out=momentum)
            np.maximum(momentum, -clip, out=momentum)
            _move(momentum, grad, beta, scratch)
            np.multiply(scratch, lr, out=scratch)
            np.subtract(params_P[block], scratch, out=next_params_P[block])


def ordered_sum(terms_RB: F64) -> F64:
    """The sum of each row, fp64 [R], always in the same order: the second half is added to the
    first, again and again. B is a power of two. Overwrites `terms_RB`."""
    width = terms_RB.shape[1]
    assert width & (width - 1) == 0, "a power of two"
    while width > 1:
        width //= 2
        np.add(terms_RB[:, :width], terms_RB[:, width : 2 * width], out=terms_RB[:, :width])
    return terms_RB[:, 0].copy()


def _swap_order(words: I32, out: I32) -> None:
    """Map the words of fp32 numbers to integers in the same order (-NaN, -inf, .., -0, 0, .., inf,
    NaN), and back. The order of integers is total; a maximum of floats is undefined for zeros and
    NaNs."""
    turned = np.bitwise_and(words >> np.int32(31), _NOT_SIGN)
    np.bitwise_xor(words, turned, out=out)


def _sort(keys_KB: I32) -> None:
    """Sort each column in place, ascending: move the largest value to the end, then the largest of
    the rest, and so on."""
    less = np.empty_like(keys_KB[0])
    for last in range(len(keys_KB) - 1, 0, -1):
        for one, other in pairwise(keys_KB[: last + 1]):
            np.minimum(one, other, out=less)
            np.maximum(one, other, out=other)
            one[:] = less


def _move(momentum: F32, grad: F32, beta: np.float32, out: F32) -> None:
    """out = momentum beta + grad; `out` may be the momentum."""
    np.multiply(momentum, beta, out=out)
    np.add(out, grad, out=out)


def _blocks(elements: int) -> Iterator[tuple[slice, F32]]:
    """Yield the slice of each block, with a scratch array of its size. All scratch arrays share the
    same memory."""
    scratch = np.empty(min(elements, BLOCK_ELEMENTS), np.float32)
    for at in range(0, elements, BLOCK_ELEMENTS):
        stop = min(at + BLOCK_ELEMENTS, elements)
        yield slice(at, stop), scratch[: stop - at]
