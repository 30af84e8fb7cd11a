"""bf16: the upper half of each fp32 word, 2 bytes a value, rounded to nearest even.

Error: at most 2**-8 of the value, or 2**-134 if it is denormal. A finite value beyond the largest
bf16 number is sent as that number, so that no codec makes an infinity; a NaN stays a NaN, an
infinity an infinity. Must NOT flush small numbers to zero: denormals are rounded like all others.
"""

import numpy as np

from lowcomm.codecs.bits import from_bf16, to_bf16
from lowcomm.codecs.codec import Payload, WritablePayload, check_size
from lowcomm.numerics.kernels import BLOCK_ELEMENTS, F32

_WIRE = np.dtype("<u2")


class Bf16:
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "bf16"
    grain = 1
    reducible = True

    def encoded_bytes(self, elements: int) -> int:
        return elements * _WIRE.itemsize

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        assert len(out) == self.encoded_bytes(values_P.size), "out has another size"
        halves_P = np.frombuffer(out, _WIRE)
        one, two = np.empty((2, min(values_P.size, BLOCK_ELEMENTS)), np.uint32)
        for start in range(0, values_P.size, BLOCK_ELEMENTS):
            values = values_P[start : start + BLOCK_ELEMENTS]
            size = values.size
            to_bf16(values, halves_P[start : start + size], one[:size], two[:size])

    def decode(self, payload: Payload, out_P: F32) -> None:
        check_size(self, payload, out_P.size)
        halves_P = np.frombuffer(payload, _WIRE)
        for start in range(0, out_P.size, BLOCK_ELEMENTS):
            block = slice(start, start + BLOCK_ELEMENTS)
            from_bf16(halves_P[block], out_P[block])
