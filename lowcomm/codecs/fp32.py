"""fp32, the identity codec: little-endian, 4 bytes a value.

Must NOT change the values: NaN payloads and signed zeros arrive as they were sent.
"""

import numpy as np

from lowcomm.codecs.codec import Payload, WritablePayload, check_size
from lowcomm.numerics.operations import F32

WIRE = np.dtype("<f4")


class Fp32:
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "fp32"
    grain = 1
    reducible = True

    def encoded_bytes(self, elements: int) -> int:
        return elements * WIRE.itemsize

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        assert len(out) == self.encoded_bytes(values_P.size), "out has another size"
        np.copyto(np.frombuffer(out, WIRE), values_P)

    def decode(self, payload: Payload, out_P: F32) -> None:
        check_size(self, payload, out_P.size)
        np.copyto(out_P, np.frombuffer(payload, WIRE))
