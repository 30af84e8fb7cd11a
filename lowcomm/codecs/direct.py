"""Avoids copies for fp32: its payload is the values' own bytes.

Must NOT change the result of any codec: only whether values are copied.
"""

import numpy as np

from lowcomm.codecs.codec import Codec, Payload, WritablePayload, check_size
from lowcomm.codecs.fp32 import WIRE, Fp32
from lowcomm.numerics.operations import F32


def decoded(codec: Codec, payload: Payload, scratch_P: F32) -> F32:
    """The decoded payload, fp32 [P]: either `scratch_P`, filled, or a view of the payload's own
    bytes, which must not be written to. Raises CodecError."""
    if not isinstance(codec, Fp32):
        codec.decode(payload, scratch_P)
        return scratch_P
    check_size(codec, payload, scratch_P.size)
    return np.frombuffer(payload, WIRE)


def to_encode(codec: Codec, out: WritablePayload, scratch_P: F32) -> F32:
    """The array, fp32 [P], into which the caller puts the values for `encode`: a view of `out` if
    the codec is fp32, otherwise `scratch_P`."""
    return np.frombuffer(out, WIRE) if isinstance(codec, Fp32) else scratch_P


def in_place(codec: Codec, values_P: F32) -> memoryview | None:
    """A view of the values' own bytes if they are the payload; otherwise None."""
    return values_P.view(np.uint8).data if isinstance(codec, Fp32) else None


def encode(codec: Codec, values_P: F32, out: WritablePayload) -> None:
    """Encode the array that `to_encode` returned into `out`, if it is not there already."""
    if not isinstance(codec, Fp32):
        codec.encode(values_P, out)
