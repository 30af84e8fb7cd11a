"""FlexDeMo's payloads: the records of all tensors, one after the other, and the mean of payloads.

The ranks write a payload in its wire format, each rank its own groups. Must NOT import torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lowcomm.codecs.codec import CodecError, Payload
from lowcomm.codecs.places import Places
from lowcomm.numerics.operations import F32
from lowcomm.replicators.replicators import Grid, Replicator, Span, Turn


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the model, and the place of its groups' records in a payload."""

    number: int
    grid: Grid
    first_element: int
    first_byte: int
    group_bytes: int
    """Bytes of the records of each group except the last one, which may have fewer."""
    size_bytes: int

    @property
    def elements(self) -> int:
        return self.grid.rows * self.grid.columns

    def place(self, span: Span, replicator: Replicator) -> slice:
        """The bytes of these groups in a payload."""
        start = self.first_byte + span.first * self.group_bytes
        return slice(start, start + span.count * replicator.group_bytes(self.grid, span.rows))


def tensors_of(
    shapes: Sequence[tuple[int, ...]], replicator: Replicator, chunk: int
) -> tuple[Tensor, ...]:
    """The tensors of a model with these parameter shapes, in layout order."""
    found: list[Tensor] = []
    element = byte = 0
    for number, shape in enumerate(shapes):
        grid = Grid.of(shape, chunk)
        whole, rest = divmod(grid.rows, chunk)
        group = replicator.group_bytes(grid, chunk)
        size = whole * group + (replicator.group_bytes(grid, rest) if rest else 0)
        found.append(Tensor(number, grid, element, byte, group, size))
        element, byte = element + grid.rows * grid.columns, byte + size
    return tuple(found)


class PayloadMean:
    """Implements `lowcomm.methods.step_exchange.StepExchange` for FlexDeMo."""

    def __init__(
        self, replicator: Replicator, tensors: Sequence[Tensor], *, seed: int, contributors: bool
    ) -> None:
        """`contributors`: if True, the mean of a place is over the nodes that sent it, otherwise
        over all nodes."""
        self.replicator = replicator
        self.tensors = tuple(tensors)
        self.payload_bytes = sum(tensor.size_bytes for tensor in tensors)
        self.written_bytes = self.payload_bytes
        self._seed = seed
        self._contributors = contributors and replicator.sends_places

    def turn(self, step: int, tensor: Tensor) -> Turn:
        return Turn(self._seed, step, tensor.number)

    def make_payload(self, written: Payload) -> Payload:
        return bytes(memoryview(written)[: self.payload_bytes])

    def check(self, step: int, payload: Payload) -> None:
        """Raise CodecError for a payload that no node would send in this step."""
        for _ in self._decoded(step, payload):
            pass

    def write_mean(self, step: int, payloads: Sequence[Payload], out_P: F32) -> Sequence[int]:
        counted = [at for at, payload in enumerate(payloads) if self._counts(step, payload)]
        if not counted:
            out_P[:] = 0
        for said in zip(*(self._decoded(step, payloads[at]) for at in counted), strict=True):
            tensor, span = said[0].tensor, said[0].span
            mean_NX = self._mean_of(said)
            values_GRC = self.replicator.synthesise(mean_NX, tensor.grid, span)
            values_GRC[~np.isfinite(values_GRC)] = 0  # Finite values may have an infinite sum.
            rows = span.first * tensor.grid.chunk
            start = tensor.first_element + rows * tensor.grid.columns
            out_P[start : start + values_GRC.size] = values_GRC.reshape(-1)
        return counted

    def _counts(self, step: int, payload: Payload) -> bool:
        try:
            self.check(step, payload)
        except CodecError:
            return False
        return True

    def _decoded(self, step: int, payload: Payload) -> "Iterator[_Said]":
        if len(payload) != self.payload_bytes:
            raise CodecError(f"flexdemo: {len(payload)} bytes, expected {self.payload_bytes}")
        bytes_S = np.frombuffer(payload, np.uint8)
        for tensor in self.tensors:
            turn = self.turn(step, tensor)
            for span in tensor.grid.spans(0, tensor.grid.groups):
                records_GS = bytes_S[tensor.place(span, self.replicator)].reshape(span.count, -1)
                found = self.replicator.decode_groups(records_GS, tensor.grid, span, turn)
                yield _Said(tensor, span, *found)

    def _mean_of(self, said: "Sequence[_Said]") -> F32:
        grid, span = said[0].tensor.grid, said[0].span
        tiles, width, _ = self.replicator.tiling(grid, span.rows)
        sum_NX = np.zeros((span.count * tiles, width), np.float32)
        count_NX = np.zeros_like(sum_NX) if self._contributors else None
        row_N1 = np.arange(len(sum_NX))[:, None]
        with np.errstate(all="ignore"):
            for term in said:
                # A payload has no place twice, so indexing adds all. Places are mostly few.
                everywhere = term.places_NK.shape[1] == width
                at = np.s_[:] if everywhere else (row_N1, term.places_NK)
                sum_NX[at] += term.values_NK
                if count_NX is not None:
                    count_NX[at] += 1
        divisor = np.maximum(count_NX, 1) if count_NX is not None else np.float32(len(said))
        return np.divide(sum_NX, divisor, out=sum_NX)


@dataclass(frozen=True, slots=True)
class _Said:
    """The decoded places and values of one node, for some groups."""

    tensor: Tensor
    span: Span
    places_NK: Places
    values_NK: F32
