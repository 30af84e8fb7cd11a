"""The outer step's operations on arrays: which ones there are, and numpy's way to do them.

`loops()` gives the compiled ones (_arithmetic.c: one pass over memory) where a C compiler was there
at installation; else numpy's, a block at a time and a call for each operation. Both make the same
bits. Must NOT be called with arrays that nobody has checked: lowcomm/outer.py does that, and says
what each operation means.

Shapes: P elements each; fp32, C-contiguous, aligned.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

BLOCK_ELEMENTS = 1 << 16
"""Work in blocks of 256 KiB: what several passes touch stays in the L2 cache (1.8 x, measured)."""


class Loops(Protocol):
    """They hold no lock while they run."""

    def difference(self, left_P: F32, right_P: F32, out_P: F32, /) -> None:
        """out = left - right; `out` may be one of them."""
        ...

    def weighted_mean(
        self, contributions: Sequence[F32], weights: F32, inverse: np.float32, out_P: F32, /
    ) -> None:
        """out = (c_1 w_1 + c_2 w_2 + ..) inverse, summed in this order."""
        ...

    def descent(self, params_P: F32, grad_P: F32, lr: np.float32, next_params_P: F32, /) -> None:
        """next params = params - grad lr; it may be the params."""
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
        """next momentum = momentum beta + grad; next params = params - (that beta + grad) lr;
        each may be the array that it is the next of."""
        ...


def loops() -> Loops:
    """The fastest that this installation has."""
    try:
        return cast(Loops, import_module("lowcomm._arithmetic"))
    except ImportError:  # No compiler was there when this was installed.
        return NumpyLoops()


class NumpyLoops:
    """Of several operations on one element each rounds by itself: fused, CPUs differ."""

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


def _move(momentum: F32, grad: F32, beta: np.float32, out: F32) -> None:
    """out = momentum beta + grad; `out` may be the momentum."""
    np.multiply(momentum, beta, out=out)
    np.add(out, grad, out=out)


def _blocks(elements: int) -> Iterator[tuple[slice, F32]]:
    """Each block, and scratch of its size, always in the same place."""
    scratch = np.empty(min(elements, BLOCK_ELEMENTS), np.float32)
    for at in range(0, elements, BLOCK_ELEMENTS):
        stop = min(at + BLOCK_ELEMENTS, elements)
        yield slice(at, stop), scratch[: stop - at]
