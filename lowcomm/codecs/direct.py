"""Values where they lie: no copy for the codec whose bytes are the values themselves.

Must NOT change what a codec makes of anything: only whether it is copied.
"""

import numpy as np

from lowcomm.codecs.base import Codec, Payload, WritablePayload, check_size
from lowcomm.codecs.fp32 import WIRE, Fp32
from lowcomm.numerics.operations import F32


def decoded(codec: Codec, payload: Payload, scratch_P: F32) -> F32:
    """What the payload says, fp32 [P]: `scratch_P` filled, or the payload's own bytes, not to be
    written to. Raises CodecError."""
    if not isinstance(codec, Fp32):
        codec.decode(payload, scratch_P)
        return scratch_P
    check_size(codec, payload, scratch_P.size)
    return np.frombuffer(payload, WIRE)


def to_encode(codec: Codec, out: WritablePayload, scratch_P: F32) -> F32:
    """Where to put P values that `encode` then brings into `out`: there at once, or `scratch_P`."""
    return np.frombuffer(out, WIRE) if isinstance(codec, Fp32) else scratch_P


def in_place(codec: Codec, values_P: F32) -> memoryview | None:
    """These values' own bytes, where the codec's are the values themselves."""
    return values_P.view(np.uint8).data if isinstance(codec, Fp32) else None


def encode(codec: Codec, values_P: F32, out: WritablePayload) -> None:
    """Of what `to_encode` gave."""
    if not isinstance(codec, Fp32):
        codec.encode(values_P, out)
