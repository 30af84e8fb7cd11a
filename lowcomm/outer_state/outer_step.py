"""The step from one version of a fragment's outer parameters to the next, piece by piece.

Pieces may be made before the commit, as a result arrives. The next momentum is made after the
commit, when the ranks have the parameters that they wait for: the step is then computed once more.
The caller holds the state's lock. Must NOT know the meaning of contributions, nor which component
uses the state.
"""

from collections.abc import Iterator, Sequence

from lowcomm.methods.base import RoundMethod
from lowcomm.numerics import state_digests
from lowcomm.numerics.direction_means import Directions
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.results import PieceScratch, Results
from lowcomm.outer_state.versions import Committed, FinishedAhead, OuterState
from peers.exchange import PIECE_ELEMENTS, Bytes


class OuterStep:
    """The outer step of one fragment. All methods but `make_piece` share one scratch, so they may
    be called in one thread only."""

    def __init__(self, method: RoundMethod, results: Results, scratch: PieceScratch) -> None:
        """`scratch`: that of the thread that calls."""
        self._method = method
        self._results = results
        self._scratch = scratch

    def make_rest(self, state: OuterState, made: FinishedAhead, of: Committed) -> None:
        """Make all missing pieces of the next version. Its momentum is not made yet; it becomes
        due."""
        for at, part, start, stop in of.pieces():
            if made.parts.get(at) is not part:
                # The owner of the part decodes it too, and so has the same bits as all other peers.
                mean_C = self._mean(of, part, at, start, stop)
                self.make_piece(state, made, at, mean_C, self._scratch)
        state.due = of if state.momentum_P.size else None
        cells = state_digests.cells(state.outer_P.size)
        if state.compared and any(cell.start not in made.digests for cell in cells):
            self.settle(state)

    def make_by_direction(
        self, state: OuterState, made: FinishedAhead, of: Committed, directions: Directions
    ) -> None:
        """Make all of the next version; its memory first takes the sums of directions. The momentum
        is made at once, because to make it later would need all sums once more."""
        sum_P = state.next_outer_P

        def values() -> Iterator[tuple[int, Sequence[F32]]]:
            for at, part, start, stop in of.pieces():
                piece = self._results.cut(part, start, stop, len(of.contributors))
                yield at, self._results.gathered(piece, stop - start, self._scratch)

        directions.add_up(values, self._method.weights(of.contributors), sum_P)
        momentum_P, next_momentum_P = state.momentum_P, state.room_for_momentum()
        for cell in state_digests.cells(sum_P.size):
            mean_C = self._scratch.piece(0, cell.stop - cell.start)
            directions.scale(cell.start, sum_P[cell], mean_C)
            next_outer_C, next_momentum_C = state.next_outer_P[cell], next_momentum_P[cell]
            self._method.outer_step(
                state.outer_P[cell], momentum_P[cell], mean_C, next_outer_C, next_momentum_C
            )
            made.digests[cell.start] = state_digests.cell_digest(next_outer_C, next_momentum_C)
        state.momentum_P = next_momentum_P

    def settle(self, state: OuterState) -> None:
        """Make the momentum that is due, if any: compute the step once more, and keep only its
        momentum."""
        of, state.due = state.due, None
        if of is None:
            return
        next_momentum_P = state.room_for_momentum()
        for at, part, start, stop in of.pieces():
            mean_C = self._mean(of, part, at, start, stop)
            here = slice(at, at + mean_C.size)
            momentum_C, again_C = state.momentum_P[here], self._scratch.piece(1, mean_C.size)
            self._method.outer_step(
                of.outer_P[here], momentum_C, mean_C, again_C, next_momentum_P[here]
            )
        state.momentum_P = next_momentum_P

    def make_piece(
        self, state: OuterState, made: FinishedAhead, start: int, mean_C: F32, scratch: PieceScratch
    ) -> None:
        """Make a piece of the next version, from the fragment's element `start` on. The next
        momentum is not kept, because the present one is needed until the commit; only its digest
        is, for a whole cell. `mean_C` may lie in the first array of `scratch`."""
        here = slice(start, start + mean_C.size)
        next_outer_C, momentum_C = state.next_outer_P[here], state.momentum_P[here]
        next_momentum_C = scratch.piece(1, momentum_C.size)
        self._method.outer_step(
            state.outer_P[here], momentum_C, mean_C, next_outer_C, next_momentum_C
        )
        if state.compared and _is_cell(here, state.outer_P.size):  # Both are in the CPU cache now.
            made.digests[start] = state_digests.cell_digest(next_outer_C, next_momentum_C)

    def _mean(self, of: Committed, part: Bytes, at: int, start: int, stop: int) -> F32:
        piece = self._results.cut(part, start, stop, len(of.contributors))
        terms, scratch = of.contributors, self._scratch
        return self._results.mean(piece, stop - start, terms, scratch, at=at)


def _is_cell(here: slice, elements: int) -> bool:
    """Whether the slice is one whole cell. Cells begin at multiples of a piece, and only the last
    one is shorter."""
    aligned = here.start % PIECE_ELEMENTS == 0
    return aligned and (here.stop - here.start == PIECE_ELEMENTS or here.stop == elements)
