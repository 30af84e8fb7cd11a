"""The arithmetic that every peer repeats for itself, so that all end with equal bits (I1).

One IEEE rounding an operation, every order of summation written out; `lowcomm/numerics/kernels.py`
does the operations, compiled or with numpy. Must NOT use torch, a fused operation, a library
reduction or optimizer: with fused multiply-add the same outer step differs between CPU generations.

Shapes: P elements of a fragment, or of any piece of one: everything but the digest is elementwise,
so a piece gives the bits of the whole (`block_squares` those of its blocks). Arrays are
one-dimensional, C-contiguous, native fp32, and overlap nothing else unless it says so. Nothing here
holds the GIL while it computes, or allocates more than a block. NaNs stay NaNs, but which of their
bits is not defined.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import xxhash

from lowcomm.numerics.kernels import F32, F64, NORM_ELEMENTS, clipped_nesterov_step, loops
from peers.exchange.interfaces import no_matter
from peers.exchange.pieces import spans
from protocols.types.errors import LowcommError

LARGE_BYTES = 8 << 20
"""A fragment from here on has left the caches when its next reader comes."""
_loops = loops()


class WeightsError(LowcommError):
    """These token counts are no weights of a mean."""


def copy(values_P: F32, out_P: F32, *, of_bytes: int) -> None:
    """Write `values_P`, which lie elsewhere and are part of a fragment of so many bytes, to
    `out_P`: past the caches if it is large (docs/arithmetic.md)."""
    _check(values_P, out_P)
    if of_bytes >= LARGE_BYTES:
        _loops.copy(values_P, out_P)
    else:
        out_P[:] = values_P


def pseudo_gradient(outer_P: F32, local_P: F32, out: F32) -> None:
    """Write outer - local: where the node started minus where it is, so a step subtracts it.

    `out` may be one of the inputs.
    """
    _check(outer_P, local_P, out)
    _loops.difference(outer_P, local_P, out)


def rebase(new_P: F32, old_P: F32, out: F32) -> None:
    """Write new - old: what an uncounted peer adds to its local parameters to keep its work.

    `out` may be one of the inputs.
    """
    _check(new_P, old_P, out)
    _loops.difference(new_P, old_P, out)


def weighted_mean(contributions: Sequence[F32], tokens: Sequence[int], out: F32) -> None:
    """Write the mean of the contributions, weighted by the tokens behind each, into `out`.

    They are summed in the order given, and the bits depend on it: the caller sorts by peer id.
    Raises WeightsError when there is nothing to average: no contribution, no token, or fewer
    than zero of them (`tokens` come from other peers).
    """
    scaled_mean(contributions, *mean_weights(tuple(tokens)), out)


def scaled_mean(contributions: Sequence[F32], weights: F32, inverse: np.float32, out: F32) -> None:
    """As `weighted_mean`, by what `mean_weights` makes of token counts, or others like it."""
    assert len(contributions) == weights.size, "one weight a contribution"
    _check(out, *contributions)
    assert not any(np.may_share_memory(out, array) for array in contributions)
    _loops.weighted_mean(contributions, weights, inverse, out)


@lru_cache(maxsize=16)  # Of a step they are the same each time.
def mean_weights(tokens: tuple[int, ...]) -> tuple[F32, np.float32]:
    """Weights relative to the largest, and one over their sum. Not to be written to."""
    most = max(tokens, default=0)
    if most <= 0 or min(tokens) < 0:
        raise WeightsError(f"no mean over the token counts {list(tokens)}")
    weights = np.array([count / most for count in tokens], np.float32)
    total = 0.0
    for weight in weights:  # Not sum(): from Python 3.12 on it compensates, and rounds otherwise.
        total += float(weight)
    return weights, np.float32(1.0 / total)


def trimmed_mean(contributions: Sequence[F32], trimmed: int, out: F32) -> None:
    """Write, element by element, the mean of what is left without the `trimmed` largest and as
    many smallest. A NaN lies at an end."""
    left = len(contributions) - 2 * trimmed
    assert left > 0, "nothing is left"
    assert trimmed >= 0
    _check(out, *contributions)
    assert not any(np.may_share_memory(out, array) for array in contributions)
    _loops.trimmed_mean(contributions, trimmed, np.float32(1.0 / left), out)


def all_finite(values_P: F32) -> bool:
    """Whether no value is infinite or a NaN."""
    _check(values_P)
    return _loops.all_finite(values_P)


def block_squares(values_P: F32) -> F64:
    """The sum of the squares of each NORM_ELEMENTS values, in fp64; the last ones may be fewer."""
    _check(values_P)
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
    """Nesterov SGD as torch.optim.SGD defines it: momentum = beta momentum + grad;
    params -= lr (beta momentum + grad). A fresh momentum is zero. With a `clip`, each element of
    the momentum is kept within that much of 0, before the parameters step.

    Written elsewhere, the step can be made before its round is known to be committed; the next
    parameters may be `params_P` itself, and the next momentum `momentum_P`.
    """
    _check(params_P, pseudo_grad_P, momentum_P, next_params_P, next_momentum_P)
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
    """Momentum that pulls towards a target: momentum = beta momentum + lr (target - params);
    params += momentum. A fresh momentum is zero. What is written where: as `nesterov_step`."""
    _check(params_P, target_P, momentum_P, next_params_P, next_momentum_P)
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
    """SGD without momentum: next params = params - lr grad; they may be `params_P` itself."""
    _check(params_P, pseudo_grad_P, next_params_P)
    _loops.descent(params_P, pseudo_grad_P, np.float32(lr), next_params_P)


def state_digest(outer_P: F32, momentum_P: F32, before_cell: Callable[[], None] = no_matter) -> str:
    """32 hex digits of a whole fragment: xxh3-128 of the digests of its cells, in order.

    `momentum_P` is empty where a method keeps none. `before_cell` may end it: it raises then.
    """
    _check(outer_P)
    _check(momentum_P)
    assert momentum_P.size in (0, outer_P.size), "another fragment's momentum"
    found: list[bytes] = []
    for cell in cells(outer_P.size):
        before_cell()
        found.append(cell_digest(outer_P[cell], momentum_P[cell]))
    return digest_of_cells(found)


def cells(elements: int) -> Iterator[slice]:
    """What a state's digest is made of, cell by cell; the last one may be shorter."""
    return (slice(start, stop) for start, stop in spans(elements))


def cell_digest(outer_C: F32, momentum_C: F32) -> bytes:
    """xxh3-128 of one cell: outer parameters, then momentum. Known as soon as the cell is."""
    assert sys.byteorder == "little", "the digest is defined over little-endian bytes"
    state = xxhash.xxh3_128()
    state.update(outer_C.data)
    state.update(momentum_C.data)
    return state.digest()


def digest_of_cells(found: Sequence[bytes]) -> str:
    """The digest of the state that has these cells."""
    return xxhash.xxh3_128_hexdigest(b"".join(found))


def _check(*arrays: F32) -> None:
    for array in arrays:
        assert array.dtype == np.float32, f"{array.dtype} instead of fp32"
        assert array.shape == (arrays[0].size,), f"shapes {[each.shape for each in arrays]}"
        assert array.flags.c_contiguous, "not contiguous"
        assert array.flags.aligned, "not aligned"
