"""The step from one version of a fragment's outer parameters to the next, piece by piece.

A step may be made ahead, piece by piece as a result comes in, and once more for its momentum, when
the round is committed and the ranks have what they wait for. Whoever calls holds the state's lock.
Must NOT know what is contributed, nor who wants the state.
"""

from collections.abc import Iterator, Sequence

from lowcomm.methods.base import RoundMethod
from lowcomm.numerics import operations
from lowcomm.numerics.direction_means import Directions
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.results import Results, Scratch
from lowcomm.outer_state.versions import Ahead, Committed, OuterState
from peers.exchange.interfaces import Bytes
from peers.exchange.pieces import PIECE_ELEMENTS


class OuterStep:
    """Of one method. All but `make_piece` is for one thread: it has one scratch."""

    def __init__(self, method: RoundMethod, results: Results) -> None:
        self._method = method
        self._results = results
        self._scratch = Scratch()

    def make_rest(self, state: OuterState, made: Ahead, of: Committed) -> None:
        """What is not made yet of the next version, but its momentum, which is due afterwards."""
        for at, part, start, stop in of.pieces():
            if made.parts.get(at) is not part:
                # The owner too takes the decoded bytes: what others hold, bit by bit.
                self.make_piece(state, made, at, self._mean(of, part, start, stop), self._scratch)
        state.due = of if state.momentum_P.size else None
        cells = operations.cells(state.outer_P.size)
        if state.compared and any(cell.start not in made.digests for cell in cells):
            self.settle(state)

    def make_by_direction(
        self, state: OuterState, made: Ahead, of: Committed, directions: Directions
    ) -> None:
        """All of the next version; before it is made its memory holds the sums. Nothing is due
        afterwards: to make the momentum by itself would take all sums once more."""
        sum_P = state.next_outer_P

        def values() -> Iterator[tuple[int, Sequence[F32]]]:
            for at, part, start, stop in of.pieces():
                piece = self._results.cut(part, start, stop, len(of.contributors))
                yield at, self._results.gathered(piece, stop - start, self._scratch)

        directions.add_up(values, self._method.weights(of.contributors), sum_P)
        momentum_P, next_momentum_P = state.momentum_P, state.room_for_momentum()
        for cell in operations.cells(sum_P.size):
            mean_C = self._scratch.piece(0, cell.stop - cell.start)
            directions.scale(cell.start, sum_P[cell], mean_C)
            next_outer_C, next_momentum_C = state.next_outer_P[cell], next_momentum_P[cell]
            self._method.outer_step(
                state.outer_P[cell], momentum_P[cell], mean_C, next_outer_C, next_momentum_C
            )
            made.digests[cell.start] = operations.cell_digest(next_outer_C, next_momentum_C)
        state.momentum_P = next_momentum_P

    def settle(self, state: OuterState) -> None:
        """The momentum that is due: the step once more, for what it makes of the momentum."""
        of, state.due = state.due, None
        if of is None:
            return
        next_momentum_P = state.room_for_momentum()
        for at, part, start, stop in of.pieces():
            mean_C = self._mean(of, part, start, stop)
            here = slice(at, at + mean_C.size)
            momentum_C, again_C = state.momentum_P[here], self._scratch.piece(1, mean_C.size)
            self._method.outer_step(
                of.outer_P[here], momentum_C, mean_C, again_C, next_momentum_P[here]
            )
        state.momentum_P = next_momentum_P

    def make_piece(
        self, state: OuterState, made: Ahead, start: int, mean_C: F32, scratch: Scratch
    ) -> None:
        """A piece of the next version, from the fragment's element `start` on; of its momentum the
        digest alone, as the present one is needed until the round is committed. `scratch`: what the
        mean may lie in the first array of."""
        here = slice(start, start + mean_C.size)
        next_outer_C, momentum_C = state.next_outer_P[here], state.momentum_P[here]
        next_momentum_C = scratch.piece(1, momentum_C.size)
        self._method.outer_step(
            state.outer_P[here], momentum_C, mean_C, next_outer_C, next_momentum_C
        )
        if state.compared and _is_cell(here, state.outer_P.size):  # It is in the cache now.
            made.digests[start] = operations.cell_digest(next_outer_C, next_momentum_C)

    def _mean(self, of: Committed, part: Bytes, start: int, stop: int) -> F32:
        piece = self._results.cut(part, start, stop, len(of.contributors))
        return self._results.mean(piece, stop - start, of.contributors, self._scratch)


def _is_cell(here: slice, elements: int) -> bool:
    """Cells begin at multiples of a piece, and only the last one is shorter."""
    aligned = here.start % PIECE_ELEMENTS == 0
    return aligned and (here.stop - here.start == PIECE_ELEMENTS or here.stop == elements)
