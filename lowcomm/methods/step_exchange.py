"""What the daemons of a stepwise run make of what their ranks write: payloads, and their mean.

Must NOT import torch, nor know of states or connections.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from lowcomm.codecs import direct
from lowcomm.codecs.base import Codec, CodecError, Payload
from lowcomm.numerics import operations
from lowcomm.numerics.operations import F32


class StepExchange(Protocol):
    """Of one run."""

    @property
    def written_bytes(self) -> int:
        """What the ranks of a node write in each step."""
        ...

    @property
    def payload_bytes(self) -> int:
        """Of each payload, as it travels."""
        ...

    def payload(self, written: Payload) -> Payload:
        """Of what the ranks wrote: bytes of its own."""
        ...

    def mean(self, step: int, payloads: Sequence[Payload], out_P: F32) -> Sequence[int]:
        """Of these payloads, in this order: the same bits everywhere. One that is no payload, or
        not finite, counts for nothing: the same bytes are the same to everybody. Returns the
        numbers of those that count."""
        ...


class CodedExchange:
    """Ranks write one fp32 value for each element of the model, which travel in a codec."""

    def __init__(self, codec: Codec, elements: int) -> None:
        self.written_bytes = 4 * elements
        self.payload_bytes = codec.encoded_bytes(elements)
        self._codec = codec
        self._elements = elements
        self._scratch: list[F32] = []
        """Decoded payloads."""

    def payload(self, written: Payload) -> Payload:
        payload = memoryview(bytearray(self.payload_bytes))
        values_P = np.frombuffer(written, np.float32)
        to_encode_P = direct.to_encode(self._codec, payload, values_P)
        if to_encode_P is not values_P:
            to_encode_P[:] = values_P
        direct.encode(self._codec, values_P, payload)
        return payload

    def mean(self, step: int, payloads: Sequence[Payload], out_P: F32) -> Sequence[int]:
        terms = dict[int, F32]()
        for number, payload in enumerate(payloads):
            term_P = self._decoded(payload, len(terms))
            if term_P is not None:
                terms[number] = term_P
        _mean(terms, out_P)
        if not operations.all_finite(out_P):
            # Whatever is not finite stays so in a sum: only now it is worth a look at each.
            terms = {
                number: term_P for number, term_P in terms.items() if operations.all_finite(term_P)
            }
            _mean(terms, out_P)
        return tuple(terms)

    def _decoded(self, payload: Payload, number: int) -> F32 | None:
        while len(self._scratch) <= number:
            self._scratch.append(np.empty(self._elements, np.float32))
        try:
            return direct.decoded(self._codec, payload, self._scratch[number])
        except CodecError:
            return None


def _mean(terms: Mapping[int, F32], mean_P: F32) -> None:
    """Zero of none."""
    if terms:
        operations.weighted_mean(tuple(terms.values()), (1,) * len(terms), mean_P)
    else:
        mean_P[:] = 0
