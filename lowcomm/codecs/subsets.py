"""The shared part of codecs that send a subset of the values, chosen as a function of the key.

All peers of a round use the same key, so the choice itself is never sent, and a sum of payloads is
the payload of the sum. Must NOT choose by the values: top-k does.
"""

import numpy as np
import numpy.typing as npt

from lowcomm.codecs.base import Payload, WritablePayload, check_size
from lowcomm.numerics.operations import F32

RATE = 16
"""One value in this many is sent."""
_WIRE = np.dtype("<f4")


class SubsetCodec:
    """Implements `lowcomm.codecs.base.Codec`. A subclass sets `name` and `grain`, and implements
    `places`."""

    name: str
    grain: int
    """Values in a block, a multiple of RATE."""
    reducible = True

    def __init__(self, key: int = 0) -> None:
        """`key` (64 bits) names the round; another key selects other values."""
        self.key = key

    def places(self, elements: int) -> npt.NDArray[np.intp]:
        """The places that are sent of a block's first `elements` values: one in RATE, rounded up,
        ascending.

        They are the same in each block of a round, so that a piece can be encoded by itself.
        """
        raise NotImplementedError

    def encoded_bytes(self, elements: int) -> int:
        blocks, rest = divmod(elements, self.grain)
        return _WIRE.itemsize * (blocks * (self.grain // RATE) + -(-rest // RATE))

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        assert len(out) == self.encoded_bytes(values_P.size), "out has another size"
        assert values_P.flags.c_contiguous, "not contiguous"
        blocks, rest = divmod(values_P.size, self.grain)
        sent, whole = np.frombuffer(out, _WIRE), blocks * self.grain
        if blocks:
            places_K = self.places(self.grain)
            sent_RK = sent[: blocks * places_K.size].reshape(blocks, places_K.size)
            sent_RK[:] = values_P[:whole].reshape(blocks, -1)[:, places_K]
        if rest:
            places_K = self.places(rest)
            sent[sent.size - places_K.size :] = values_P[whole:][places_K]

    def decode(self, payload: Payload, out_P: F32) -> None:
        check_size(self, payload, out_P.size)
        assert out_P.flags.c_contiguous, "not contiguous"
        blocks, rest = divmod(out_P.size, self.grain)
        sent, whole = np.frombuffer(payload, _WIRE), blocks * self.grain
        out_P[:] = 0
        if blocks:
            places_K = self.places(self.grain)
            sent_RK = sent[: blocks * places_K.size].reshape(blocks, places_K.size)
            out_P[:whole].reshape(blocks, -1)[:, places_K] = sent_RK
        if rest:
            places_K = self.places(rest)
            out_P[whole:][places_K] = sent[sent.size - places_K.size :]
