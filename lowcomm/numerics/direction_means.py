"""The direction mean of whole tensors: Decoupled DiLoCo combines contributions with it at the
commit.

For a tensor's contributions D_k with weights w_k it is (sum of w |D|) / (sum of w) times the
direction of the sum of w D / |D|. Contributions of independent nodes are nearly orthogonal, so
their plain mean shrinks as nodes are added; the direction mean keeps their length. It needs norms
of whole tensors, and no owner of a part has those. So contributions are gathered, and every peer
computes the mean by itself in three passes, piece by piece: norms; sums of directions, in memory
that the next version needs anyway; the outer step. Squares are summed over the blocks of
`operations.block_squares`, counted from the fragment's first element, and the block sums are then
added one after the other in fp64. If parts and pieces begin at blocks, the bits are the same
wherever they are cut. Must NOT know of rounds, nor choose the tensors that are averaged by
direction.

Shapes: P elements of the fragment, C of a piece, K contributions, T tensors.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from lowcomm.numerics import operations
from lowcomm.numerics.kernels import F32, NORM_ELEMENTS
from protocols.types import TensorSpec

Pieces = Callable[[], Iterable[tuple[int, Sequence[F32]]]]
"""Iterates over the contributions piece by piece: the fragment's element where each piece begins,
and the values of the K contributions there. These must not change until the next piece is
requested."""

SHORTEST = 2.0**-100
"""Norm below which a contribution has no direction: the reciprocal of its norm may not be an fp32
number."""
LARGEST = float(np.finfo(np.float32).max)


class Directions:
    """Computes the direction means of one fragment: `add_up` once, then `scale` for each piece."""

    def __init__(self, tensors: Sequence[TensorSpec], by_direction: Callable[[str], bool]) -> None:
        """`tensors`: those of the fragment, in layout order. `by_direction`: True for the name of a
        tensor that is averaged by direction; the others get the weighted mean."""
        self._starts = [tensor.offset for tensor in tensors]
        self._end = sum(math.prod(tensor.shape) for tensor in tensors)
        self._turned = [by_direction(tensor.name) for tensor in tensors]
        self._factors: list[np.float32] = []
        """For each tensor, the factor that scales its sum of directions to the mean length; 1 for a
        tensor with a weighted mean."""

    def add_up(self, pieces: Pieces, weights: Sequence[int], sum_P: F32) -> None:
        """Write the sums of directions to `sum_P`, and the weighted means of the other tensors.
        `weights` are positive.

        Raises WeightsError if there is nothing to average.
        """
        means_K, inverse = operations.mean_weights(tuple(weights))
        norms_KT = self._norms((start, values_KC) for start, values_KC in pieces())
        turned_KT = _by_direction(weights, norms_KT)
        squares_T = [0.0] * len(self._starts)
        for start, values_KC in pieces():
            for tensor, here, there in self._places(start, values_KC[0].size):
                parts_KC, out_C = [values_C[here] for values_C in values_KC], sum_P[there]
                if self._turned[tensor]:
                    operations.scaled_mean(
                        parts_KC, turned_KT[:, tensor].copy(), np.float32(1), out_C
                    )
                    squares_T[tensor] = _add_squares(squares_T[tensor], out_C, there.start)
                else:
                    operations.scaled_mean(parts_KC, means_K, inverse, out_C)
        self._factors = [
            _factor(weights, [norms_T[tensor] for norms_T in norms_KT], squares)
            if self._turned[tensor]
            else np.float32(1)
            for tensor, squares in enumerate(squares_T)
        ]

    def scale(self, start: int, sum_C: F32, out_C: F32) -> None:
        """Write the mean of one piece to `out_C`. `sum_C`: the piece of the sums; `start`: the
        fragment's element where the piece begins."""
        with np.errstate(all="ignore"):
            for tensor, here, _ in self._places(start, sum_C.size):
                np.multiply(sum_C[here], self._factors[tensor], out=out_C[here])

    def _norms(self, pieces: Iterable[tuple[int, Sequence[F32]]]) -> list[list[float]]:
        """Norms of each contribution's tensors, [K][T]; 0 for tensors with a weighted mean."""
        found: list[list[float]] = []
        for start, values_KC in pieces:
            found = found or [[0.0] * len(self._starts) for _ in values_KC]
            for tensor, here, there in self._places(start, values_KC[0].size):
                if self._turned[tensor]:
                    for squares_T, values_C in zip(found, values_KC, strict=True):
                        before = squares_T[tensor]
                        squares_T[tensor] = _add_squares(before, values_C[here], there.start)
        return [[math.sqrt(squares) for squares in squares_T] for squares_T in found]

    def _places(self, start: int, elements: int) -> Iterator[tuple[int, slice, slice]]:
        """Yield each tensor that has some of these elements: its number, their slice in the piece,
        and their slice in the fragment."""
        tensor = bisect_right(self._starts, start) - 1
        stop = start + elements
        while tensor < len(self._starts) and self._starts[tensor] < stop:
            ends = (*self._starts[tensor + 1 : tensor + 2], self._end)
            first, last = max(start, self._starts[tensor]), min(stop, ends[0])
            if first < last:
                yield tensor, slice(first - start, last - start), slice(first, last)
            tensor += 1


def _add_squares(total: float, values_C: F32, start: int) -> float:
    """Add the squares of `values_C` to the total, block by block. `start`: the fragment's element
    where they begin."""
    head = min(-start % NORM_ELEMENTS, values_C.size)
    for part_C in (values_C[:head], values_C[head:]):
        for squares in operations.block_squares(part_C).tolist():
            total += squares
    return total


def _by_direction(weights: Sequence[int], norms_KT: Sequence[Sequence[float]]) -> F32:
    """Factors that scale each contribution to a length of its weight divided by the largest weight,
    fp32 [K, T]; 0 for a contribution without a direction."""
    found, most = np.zeros((len(weights), len(norms_KT[0])), np.float32), max(weights)
    for number, (weight, norms_T) in enumerate(zip(weights, norms_KT, strict=True)):
        for tensor, norm in enumerate(norms_T):
            found[number, tensor] = weight / most / norm if norm >= SHORTEST else 0.0
    return found


def _factor(weights: Sequence[int], norms_K: Sequence[float], squares: float) -> np.float32:
    """The factor that scales a sum of directions to the weighted mean of the norms. `squares`: sum
    of squares of that sum."""
    if not squares:
        return np.float32(0)
    length = total = 0.0
    for weight, norm in zip(weights, norms_K, strict=True):
        length += weight * norm
        total += weight
    return np.float32(min(length / total / math.sqrt(squares), LARGEST))
