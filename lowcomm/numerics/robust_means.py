"""Aggregates of contributions: their mean, or a robust mean that a few contributions cannot move
far.

The owner of a part computes an aggregate; in a gather every peer does. The bits must be the same
wherever parts and pieces are cut. Norms are therefore taken over blocks of NORM_ELEMENTS elements,
counted from the fragment's first one, and not over tensors: a tensor lies in several parts, and its
norm would cost a round trip between their owners before the first sum. 4096 elements are enough for
a meaningful norm, and parts and pieces can begin at multiples of it. Must NOT know of rounds or
methods, nor treat infinities and NaNs in a special way: they stay in every aggregate except the
trimmed mean.

Shapes: K contributions, P elements of a piece, R blocks of it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from lowcomm.numerics import operations
from lowcomm.numerics.kernels import F32, F64, NORM_ELEMENTS

Aggregate = Literal["mean", "trimmed_mean", "clipped_mean", "centred_clipping"]
Room = Callable[[int], F32]
"""Returns the n-th scratch array, fp32 [P]; its content is undefined."""
_ROUNDING = 1e-9
"""Tolerance of fp64 rounding: 0.2 of 5 is 1, not slightly more."""


def grain_of(name: Aggregate) -> int:
    """The number of elements of which part borders are multiples."""
    return NORM_ELEMENTS if name in ("clipped_mean", "centred_clipping") else 1


def trimmed_count(contributions: int, share: float) -> int:
    """The number of contributions that a trimmed mean leaves out at each end: at least the share,
    but one contribution always remains."""
    return min(math.ceil(share * contributions - _ROUNDING), (contributions - 1) // 2)


def clipped_mean(contributions: Sequence[F32], tokens: Sequence[int], out: F32) -> None:
    """Write the weighted mean of the contributions, each scaled down, block by block, to the median
    norm.

    Of an even number of norms the median is the lower one in the middle. The sum is divided by the
    sum of all weights: a contribution that is scaled down counts for less, and no other counts for
    more.
    """
    weights, inverse = operations.mean_weights(tuple(tokens))
    scaled_KR = (
        _scales([operations.block_squares(each) for each in contributions]) * weights[:, None]
    )
    for block, scaled_K in enumerate(np.ascontiguousarray(scaled_KR.T)):
        here = slice(block * NORM_ELEMENTS, (block + 1) * NORM_ELEMENTS)
        operations.scaled_mean([each[here] for each in contributions], scaled_K, inverse, out[here])


def sent_mean(
    contributions: Sequence[F32], tokens: Sequence[int], out: F32, weights_P: F32
) -> None:
    """Write, for each element, the weighted mean over the contributions that are not zero there:
    for sparse contributions, those that sent it. `weights_P` is scratch for the sum of their
    weights."""
    weights, _ = operations.mean_weights(tuple(tokens))
    operations.scaled_mean(contributions, weights, np.float32(1), out)
    weights_P[:] = 0
    for contribution, weight in zip(contributions, weights, strict=True):
        np.add(weights_P, weight, out=weights_P, where=contribution != 0)
    with np.errstate(all="ignore"):
        np.divide(out, weights_P, out=out, where=weights_P != 0)


def centred_clipping(
    contributions: Sequence[F32], tokens: Sequence[int], out: F32, room: Room
) -> None:
    """Write the median of each element plus the `clipped_mean` of the differences from it.

    Karimireddy et al. (arXiv:2012.10333) clip around the last round's result, and to a fixed
    radius. That centre would be state to send to joiners, and the radius would have to follow the
    gradients; the median of elements and the median of norms need neither. Clips once, as the paper
    does.
    """
    centre_P = room(0)
    operations.trimmed_mean(contributions, (len(contributions) - 1) // 2, centre_P)
    away_KP = [room(number + 1) for number in range(len(contributions))]
    for contribution, away_P in zip(contributions, away_KP, strict=True):
        operations.pseudo_gradient(contribution, centre_P, away_P)
    clipped_mean(away_KP, tokens, out)
    with np.errstate(all="ignore"):
        np.add(centre_P, out, out=out)


def _scales(squares: Sequence[F64]) -> F32:
    """Factors that scale each block down to the median norm, fp32 [K, R]; 1 for a block that is no
    larger."""
    with np.errstate(all="ignore"):
        norms_KR = np.sqrt(np.array(squares))
        median_R = np.sort(norms_KR, axis=0)[(len(squares) - 1) // 2]  # NaNs sort last.
        scales_KR = np.where(norms_KR > median_R, median_R / norms_KR, 1.0)
    return scales_KR.astype(np.float32)
