"""Results of parts: the mean of the slices, encoded once, or, in a gather, the slices themselves.

If a codec's payloads cannot be summed, the run gathers: the owner puts the slices of all
contributors side by side, piece by piece and in their order, and every peer makes the mean itself,
with the bits that an owner would have sent (numerics/operations.py). Must NOT keep anything between
calls, nor decide which peers contribute.

Shapes: P elements of a piece.
"""

from collections.abc import Sequence

import numpy as np

from lowcomm.codecs import direct
from lowcomm.codecs.codec import CodecError
from lowcomm.methods.base import RoundMethod
from lowcomm.methods.buffers import BufferMethod
from lowcomm.numerics import operations
from lowcomm.numerics.operations import F32
from peers.exchange import PIECE_ELEMENTS, Bytes, SlicesError
from protocols.types import Contributor


class PieceScratch:
    """Arrays for pieces, allocated when they are first needed."""

    def __init__(self) -> None:
        self._pieces: list[F32] = []

    def piece(self, number: int, elements: int) -> F32:
        """An array, fp32 [elements], with arbitrary content."""
        while len(self._pieces) <= number:
            self._pieces.append(np.empty(PIECE_ELEMENTS, np.float32))
        return self._pieces[number][:elements]


class Results:
    """Results of one method. Methods raise LowcommError for pieces that do not decode."""

    def __init__(self, method: RoundMethod) -> None:
        self._method = method
        self._contribution = method.codec
        self._result = method.mean_codec
        """The codec of means; None if contributions are gathered."""
        self._codec = self._result or self._contribution
        """The codec of one layer of a result."""

    def layers(self, contributors: int) -> int:
        """Number of payloads in a result of so many contributions."""
        return contributors if self._result is None else 1

    def layer_bytes(self, elements: int) -> int:
        return self._codec.encoded_bytes(elements)

    def contribution_bytes(self, elements: int) -> int:
        return self._contribution.encoded_bytes(elements)

    def cut(self, part: Bytes, start: int, stop: int, contributors: int) -> Bytes:
        """All layers of one piece of a part: its elements [start, stop)."""
        layers = self.layers(contributors)
        first, last = layers * self.layer_bytes(start), layers * self.layer_bytes(stop)
        return memoryview(part)[first:last]

    def check(self, piece: Bytes, elements: int, scratch: PieceScratch) -> None:
        """Raises LowcommError for a piece that does not decode."""
        if self._result is None:
            self.gathered(piece, elements, scratch)
        else:
            direct.decoded(self._result, piece, scratch.piece(0, elements))

    def make(
        self,
        elements: int,
        slices: Sequence[Bytes],
        contributors: Sequence[Contributor],
        out: memoryview,
        scratch: PieceScratch,
    ) -> None:
        """Fill `out` with the result of these slices of a piece, in this order.

        Raises SlicesError for slices that do not decode. Raises it also for slices that are not
        finite, but only if others are finite: if none is, the run has diverged, and no attempt
        would end.
        """
        values = self._sound(elements, slices, scratch)
        if self._result is None:
            _refuse_infinite(values)
            size = self.layer_bytes(elements)
            for layer, piece in enumerate(slices):
                out[layer * size : (layer + 1) * size] = piece
            return
        mean_P = direct.to_encode(self._result, out, scratch.piece(0, elements))
        self._combine(values, contributors, mean_P, scratch)
        if not operations.all_finite(mean_P):  # A bad value mostly makes a bad mean.
            _refuse_infinite(values)
        direct.encode(self._result, mean_P, out)

    def mean(
        self,
        piece: Bytes,
        elements: int,
        contributors: Sequence[Contributor],
        scratch: PieceScratch,
        *,
        at: int = 0,
    ) -> F32:
        """The mean that a piece of a result contains, fp32 [P]: in the first array of `scratch`, or
        the piece's own memory. `at`: the fragment's element where the piece begins."""
        mean_P = scratch.piece(0, elements)
        if self._result is not None:
            return direct.decoded(self._result, piece, mean_P)
        values = self.gathered(piece, elements, scratch)
        if isinstance(self._method, BufferMethod):
            self._method.combine_at(at, values, contributors, mean_P)
        else:
            self._combine(values, contributors, mean_P, scratch)
        return mean_P

    def gathered(self, piece: Bytes, elements: int, scratch: PieceScratch) -> list[F32]:
        """The decoded contributions of a gathered piece, in their order; the first array of
        `scratch` stays free."""
        size, view = self.layer_bytes(elements), memoryview(piece)
        slices = [view[at : at + size] for at in range(0, len(view), size)]
        return self._decoded(elements, slices, scratch)

    def _combine(
        self,
        values: Sequence[F32],
        contributors: Sequence[Contributor],
        mean_P: F32,
        scratch: PieceScratch,
    ) -> None:
        """Write the mean of the values. The values use the arrays of `scratch` up to index
        len(values)."""
        first, elements = len(values) + 1, mean_P.size
        self._method.combine(
            values, contributors, mean_P, lambda number: scratch.piece(first + number, elements)
        )

    def _sound(self, elements: int, slices: Sequence[Bytes], scratch: PieceScratch) -> list[F32]:
        """The decoded slices, as from `_decoded`; raises SlicesError."""
        found: list[F32] = []
        for number, piece in enumerate(slices):
            room_P = scratch.piece(number + 1, elements)
            try:
                found.append(direct.decoded(self._contribution, piece, room_P))
            except CodecError as error:
                raise SlicesError((number,), str(error)) from error
        return found

    def _decoded(self, elements: int, slices: Sequence[Bytes], scratch: PieceScratch) -> list[F32]:
        """The decoded slices, fp32 [P] each; the first array of `scratch` stays free."""
        return [
            direct.decoded(self._contribution, piece, scratch.piece(number + 1, elements))
            for number, piece in enumerate(slices)
        ]


def _refuse_infinite(values: Sequence[F32]) -> None:
    void = tuple(k for k, values_P in enumerate(values) if not operations.all_finite(values_P))
    if void and len(void) < len(values):
        raise SlicesError(void, "a contribution is not finite")
