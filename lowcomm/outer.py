"""The arithmetic that every peer repeats for itself, so that all end with equal bits (I1).

One IEEE rounding an operation, a separate numpy call for each, every order of summation written
out. Must NOT use torch, a fused operation, a library reduction or optimizer: with fused
multiply-add the same outer step differs between CPU generations.

Shapes: P elements of a fragment, or of any piece of one: everything but the digest is elementwise,
so a piece gives the bits of the whole. Arrays are one-dimensional, C-contiguous, native fp32.
Nothing here allocates an array, or holds the GIL while it computes.
"""

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from protocols.errors import LowcommError

F32 = npt.NDArray[np.float32]

BLOCK_ELEMENTS = 1 << 16
"""Work in blocks of 256 KiB: what several passes touch stays in the L2 cache (1.8 x, measured)."""


class WeightsError(LowcommError):
    """These token counts are no weights of a mean."""


def pseudo_gradient(outer_P: F32, local_P: F32, out: F32) -> None:
    """Write outer - local: where the node started minus where it is, so a step subtracts it.

    `out` may be one of the inputs.
    """
    _check(outer_P, local_P, out)
    np.subtract(outer_P, local_P, out=out)


def rebase(new_P: F32, old_P: F32, out: F32) -> None:
    """Write new - old: what an uncounted peer adds to its local parameters to keep its work.

    `out` may be one of the inputs.
    """
    _check(new_P, old_P, out)
    np.subtract(new_P, old_P, out=out)


def weighted_mean(
    contributions: Sequence[F32], tokens: Sequence[int], out: F32, scratch: F32
) -> None:
    """Write the mean of the contributions, weighted by the tokens behind each, into `out`.

    They are summed in the order given, and the bits depend on it: the caller sorts by peer id.
    `out` (P elements) and `scratch` (any number >= 1, best BLOCK_ELEMENTS) overlap nothing else.
    Raises WeightsError when there is nothing to average: no contribution, no token, or fewer
    than zero of them (`tokens` come from other peers).
    """
    assert len(contributions) == len(tokens), "one token count a contribution"
    _check(out, *contributions)
    assert not any(np.may_share_memory(out, array) for array in (scratch, *contributions))
    weights, inverse = _mean_weights(tokens)
    for block in _blocks(out.size, scratch):
        acc, scratch = out[block], scratch[: block.stop - block.start]
        np.multiply(contributions[0][block], weights[0], out=acc)
        for contribution, weight in zip(contributions[1:], weights[1:], strict=True):
            np.multiply(contribution[block], weight, out=scratch)
            np.add(acc, scratch, out=acc)
        np.multiply(acc, inverse, out=acc)


def nesterov_step(
    params_P: F32, pseudo_grad_P: F32, momentum_P: F32, scratch: F32, *, lr: float, beta: float
) -> None:
    """Nesterov SGD in place on `params_P` and `momentum_P`, as torch.optim.SGD defines it.

    momentum = beta momentum + grad; params -= lr (beta momentum + grad). A fresh momentum is zero.
    `scratch` as in `weighted_mean`.
    """
    _check(params_P, pseudo_grad_P, momentum_P)
    beta_1, lr_1 = np.float32(beta), np.float32(lr)
    for block in _blocks(params_P.size, scratch):
        params, grad, momentum = params_P[block], pseudo_grad_P[block], momentum_P[block]
        scratch = scratch[: block.stop - block.start]
        np.multiply(momentum, beta_1, out=momentum)
        np.add(momentum, grad, out=momentum)
        np.multiply(momentum, beta_1, out=scratch)  # One rounding each: fused, CPUs differ.
        np.add(scratch, grad, out=scratch)
        np.multiply(scratch, lr_1, out=scratch)
        np.subtract(params, scratch, out=params)


def state_digest(outer_P: F32, momentum_P: F32) -> str:
    """32 hex digits: xxh3-128 of a whole fragment, outer parameters then momentum."""
    _check(outer_P, momentum_P)
    assert sys.byteorder == "little", "the digest is defined over little-endian bytes"
    state = xxhash.xxh3_128()
    state.update(outer_P.data)
    state.update(momentum_P.data)
    return state.hexdigest()


def _mean_weights(tokens: Sequence[int]) -> tuple[list[np.float32], np.float32]:
    """Weights relative to the largest, and one over their sum."""
    most = max(tokens, default=0)
    if most <= 0 or min(tokens) < 0:
        raise WeightsError(f"no mean over the token counts {list(tokens)}")
    weights = [np.float32(count / most) for count in tokens]
    total = 0.0
    for weight in weights:  # Not sum(): from Python 3.12 on it compensates, and rounds otherwise.
        total += float(weight)
    return weights, np.float32(1.0 / total)


def _blocks(elements: int, scratch: F32) -> Iterator[slice]:
    assert scratch.dtype == np.float32, f"scratch is {scratch.dtype}"
    size = min(scratch.size, BLOCK_ELEMENTS)
    assert size >= 1, "scratch is empty"
    return (slice(at, min(at + size, elements)) for at in range(0, elements, size))


def _check(*arrays: F32) -> None:
    for array in arrays:
        assert array.dtype == np.float32, f"{array.dtype} instead of fp32"
        assert array.shape == (arrays[0].size,), f"shapes {[each.shape for each in arrays]}"
        assert array.flags.c_contiguous, "not contiguous"
