"""The exchange of a stepwise run, in the daemons: payloads from the ranks' values, and the mean of
payloads.

Must NOT import torch, nor know of states or connections.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from lowcomm.codecs import direct
from lowcomm.codecs.codec import Codec, CodecError, Payload
from lowcomm.numerics import operations
from lowcomm.numerics.operations import F32


class StepExchange(Protocol):
    """The payload format of one run, and the mean of payloads."""

    @property
    def written_bytes(self) -> int:
        """Bytes that the ranks of a node write in each step."""
        ...

    @property
    def payload_bytes(self) -> int:
        """Bytes of each payload, as it is sent."""
        ...

    def make_payload(self, written: Payload) -> Payload:
        """The payload of the bytes that the ranks wrote, in memory of its own."""
        ...

    def write_mean(self, step: int, payloads: Sequence[Payload], out_P: F32) -> Sequence[int]:
        """Write the mean of these payloads, in this order, with the same bits on every peer. A
        payload that is malformed or not finite does not count; since all peers have the same bytes,
        it counts for none of them. Returns the numbers of the payloads that count."""
        ...


class CodedExchange:
    """The exchange for ranks that write one fp32 value for each element of the model. A codec
    encodes the values."""

    def __init__(self, codec: Codec, elements: int) -> None:
        self.written_bytes = 4 * elements
        self.payload_bytes = codec.encoded_bytes(elements)
        self._codec = codec
        self._elements = elements
        self._scratch: list[F32] = []
        """Decoded payloads, fp32 [P] each."""

    def make_payload(self, written: Payload) -> Payload:
        payload = memoryview(bytearray(self.payload_bytes))
        values_P = np.frombuffer(written, np.float32)
        to_encode_P = direct.to_encode(self._codec, payload, values_P)
        if to_encode_P is not values_P:
            to_encode_P[:] = values_P
        direct.encode(self._codec, values_P, payload)
        return payload

    def write_mean(self, step: int, payloads: Sequence[Payload], out_P: F32) -> Sequence[int]:
        terms = dict[int, F32]()
        for number, payload in enumerate(payloads):
            term_P = self._decoded(payload, len(terms))
            if term_P is not None:
                terms[number] = term_P
        _mean(terms, out_P)
        if not operations.all_finite(out_P):
            # A term that is not finite makes the sum not finite, so terms are checked only now.
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
    """Write the mean of the terms; zeros if there are none."""
    if terms:
        operations.weighted_mean(tuple(terms.values()), (1,) * len(terms), mean_P)
    else:
        mean_P[:] = 0
