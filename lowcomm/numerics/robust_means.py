"""What is made of several contributions: their mean, or one that a few of them cannot move far.

Whoever makes it, the owner of a part or in a gather everybody, makes the same bits wherever parts
and pieces are cut. So what needs norms takes those of blocks of NORM_ELEMENTS elements, counted
from the fragment's first one, and not of tensors: a tensor lies in several parts, and its norm
would cost a round trip between their owners before the first sum. 4096 elements are enough for a
norm to say something, and parts and pieces can begin at their multiples. Must NOT know of rounds or
methods, nor of what is not finite: that stays so in whatever is made of it, but for a mean that
trims it.

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
"""The n-th array of P elements for what is made on the way; what is in it is anybody's guess."""
_ROUNDING = 1e-9
"""0.2 of 5 is 1, and not a little more."""


def grain_of(name: Aggregate) -> int:
    """Part borders are multiples of it."""
    return NORM_ELEMENTS if name in ("clipped_mean", "centred_clipping") else 1


def trimmed_count(contributions: int, share: float) -> int:
    """How many are left out at each end: at least the share, and one is always left."""
    return min(math.ceil(share * contributions - _ROUNDING), (contributions - 1) // 2)


def clipped_mean(contributions: Sequence[F32], tokens: Sequence[int], out: F32) -> None:
    """The weighted mean of what is scaled down, block by block, to the median of their norms.

    Of an even number of norms the median is the lower one in the middle. It is divided by all the
    weights: who is scaled down counts for less, and nobody for more.
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
    """Of each element the weighted mean over those that are not zero there: of sparse ones, those
    that sent it. `weights_P` is room for the weights that it is divided by."""
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
    """The median of each element, and what a `clipped_mean` of the differences from it adds.

    Karimireddy et al. (arXiv:2012.10333) clip around the last round's result and to a set radius.
    That centre would be state to send to who joins, and the radius would have to follow the
    gradients: the median of elements, and of the norms, need neither. One step, as theirs.
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
    """fp32 [K, R]: what brings each block down to the median norm; 1 if it is no larger."""
    with np.errstate(all="ignore"):
        norms_KR = np.sqrt(np.array(squares))
        median_R = np.sort(norms_KR, axis=0)[(len(squares) - 1) // 2]  # NaNs are last.
        scales_KR = np.where(norms_KR > median_R, median_R / norms_KR, 1.0)
    return scales_KR.astype(np.float32)
