"""The arithmetic that every peer repeats, so that all peers have equal bits (I1).

Each operation has one IEEE rounding, and every order of summation is fixed;
`lowcomm/numerics/kernels.py` executes the operations, compiled or in numpy. Must NOT use torch, a
fused operation, a library's reduction or optimizer: with fused multiply-add the same outer step
differs between CPU generations.

Shapes: P elements of a fragment, or of any piece of one. Everything except the digest is
elementwise, so a piece gives the bits of the whole (`block_squares`: those of its blocks). Arrays
are one-dimensional, C-contiguous, native fp32, and do not overlap unless a docstring allows it. No
function holds the GIL while it computes, or allocates more than a block. NaNs stay NaNs, but their
other bits are undefined.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from lowcomm.numerics.kernels import F32, F64, NORM_ELEMENTS, clipped_nesterov_step, loops
from protocols.types import LowcommError

LARGE_BYTES = 8 << 20
"""Size from which on a fragment has left the CPU caches before its next reader comes."""
_loops = loops()


class WeightsError(LowcommError):
    """The token counts cannot be the weights of a mean."""


def copy(values_P: F32, out_P: F32, *, of_bytes: int) -> None:
    """Copy `values_P` to `out_P`, which do not overlap. If the fragment that they are part of is
    large (`of_bytes`), the copy is written past the caches (docs/arithmetic.md)."""
    check_arrays(values_P, out_P)
    if of_bytes >= LARGE_BYTES:
        _loops.copy(values_P, out_P)
    else:
        out_P[:] = values_P


def pseudo_gradient(outer_P: F32, local_P: F32, out: F32) -> None:
    """Write outer - local: the node's start minus its present parameters, so that a step subtracts
    it.

    `out` may be one of the inputs.
    """
    check_arrays(outer_P, local_P, out)
    _loops.difference(outer_P, local_P, out)


def rebase(new_P: F32, old_P: F32, out: F32) -> None:
    """Write new - old: an uncounted peer adds this to its local parameters, and so keeps its work.

    `out` may be one of the inputs.
    """
    check_arrays(new_P, old_P, out)
    _loops.difference(new_P, old_P, out)


def weighted_mean(contributions: Sequence[F32], tokens: Sequence[int], out: F32) -> None:
    """Write the mean of the contributions, weighted by the token counts, into `out`.

    Contributions are summed in the order given, and the bits depend on it: the caller sorts by peer
    id. Raises WeightsError if there is nothing to average: no contribution, no token, or a negative
    count (`tokens` come from other peers).
    """
    scaled_mean(contributions, *mean_weights(tuple(tokens)), out)


def scaled_mean(contributions: Sequence[F32], weights: F32, inverse: np.float32, out: F32) -> None:
    """`weighted_mean` with the pair that `mean_weights` returns, or another one like it: weights,
    fp32 [K], and the inverse of their sum."""
    assert len(contributions) == weights.size, "one weight a contribution"
    check_arrays(out, *contributions)
    assert not any(np.may_share_memory(out, array) for array in contributions)
    _loops.weighted_mean(contributions, weights, inverse, out)


@lru_cache(maxsize=16)  # All calls of one outer step have the same counts.
def mean_weights(tokens: tuple[int, ...]) -> tuple[F32, np.float32]:
    """(weights relative to the largest, fp32 [K]; the inverse of their sum). The array is cached:
    do not write to it. Raises WeightsError."""
    most = max(tokens, default=0)
    if most <= 0 or min(tokens) < 0:
        raise WeightsError(f"the token counts {list(tokens)} cannot be weights of a mean")
    weights = np.array([count / most for count in tokens], np.float32)
    total = 0.0
    for weight in weights:  # Not sum(): since Python 3.12 it compensates, and rounds differently.
        total += float(weight)
    return weights, np.float32(1.0 / total)


def trimmed_mean(contributions: Sequence[F32], trimmed: int, out: F32) -> None:
    """Write, for each element, the mean of the values without the `trimmed` largest and the
    `trimmed` smallest. NaNs are at the ends."""
    left = len(contributions) - 2 * trimmed
    assert left > 0, "nothing is left"
    assert trimmed >= 0
    check_arrays(out, *contributions)
    assert not any(np.may_share_memory(out, array) for array in contributions)
    _loops.trimmed_mean(contributions, trimmed, np.float32(1.0 / left), out)


def all_finite(values_P: F32) -> bool:
    """True if no value is infinite or a NaN."""
    check_arrays(values_P)
    return _loops.all_finite(values_P)


def block_squares(values_P: F32) -> F64:
    """The sum of the squares of each NORM_ELEMENTS values, fp64 [R]; the last block may have fewer
    values."""
    check_arrays(values_P)
    squares_R = np.empty(-(-values_P.size // NORM_ELEMENTS), np.float64)
    _loops.block_squares(values_P, squares_R)
    return squares_R


def nesterov_step(
    params_P: F32,
    pseudo_grad_P: F32,
    momentum_P: F32,
    next_params_P: F32,
    next_momentum_P: F32,
    *,
    lr: float,
    beta: float,
    clip: float = 0.0,
) -> None:
    """Nesterov SGD as in torch.optim.SGD: momentum = beta momentum + grad; params -= lr (beta
    momentum + grad).

    A fresh momentum is zero. If `clip` is not 0, each element of the momentum is clipped to [-clip,
    clip] before the parameters step. The results go to arrays of their own, so the step can be made
    before its round is known to be committed; `next_params_P` may also be `params_P`, and
    `next_momentum_P` may be `momentum_P`.
    """
    check_arrays(params_P, pseudo_grad_P, momentum_P, next_params_P, next_momentum_P)
    assert not np.may_share_memory(next_params_P, next_momentum_P)
    if clip:
        clipped_nesterov_step(
            params_P,
            pseudo_grad_P,
            momentum_P,
            next_params_P,
            next_momentum_P,
            lr=np.float32(lr),
            beta=np.float32(beta),
            clip=np.float32(clip),
        )
        return
    _loops.nesterov_step(
        params_P,
        pseudo_grad_P,
        momentum_P,
        np.float32(lr),
        np.float32(beta),
        next_params_P,
        next_momentum_P,
    )


def heavy_ball_step(
    params_P: F32,
    target_P: F32,
    momentum_P: F32,
    next_params_P: F32,
    next_momentum_P: F32,
    *,
    lr: float,
    beta: float,
) -> None:
    """Momentum towards a target (heavy ball): momentum = beta momentum + lr (target - params);
    params += momentum.

    A fresh momentum is zero. The outputs are as in `nesterov_step`.
    """
    check_arrays(params_P, target_P, momentum_P, next_params_P, next_momentum_P)
    assert not np.may_share_memory(next_params_P, next_momentum_P)
    _loops.heavy_ball_step(
        params_P,
        target_P,
        momentum_P,
        np.float32(lr),
        np.float32(beta),
        next_params_P,
        next_momentum_P,
    )


def descent(params_P: F32, pseudo_grad_P: F32, next_params_P: F32, *, lr: float) -> None:
    """SGD without momentum: next params = params - lr grad. `next_params_P` may be `params_P`."""
    check_arrays(params_P, pseudo_grad_P, next_params_P)
    _loops.descent(params_P, pseudo_grad_P, np.float32(lr), next_params_P)


def check_arrays(*arrays: F32) -> None:
    """Assert that these arrays are as all operations need them: fp32, of one shape, contiguous."""
    for array in arrays:
        assert array.dtype == np.float32, f"{array.dtype} instead of fp32"
        assert array.shape == (arrays[0].size,), f"shapes {[each.shape for each in arrays]}"
        assert array.flags.c_contiguous, "not contiguous"
        assert array.flags.aligned, "not aligned"
