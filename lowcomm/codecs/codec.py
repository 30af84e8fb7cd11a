"""The interface of a codec: values of a fragment to bytes on the wire, and back.

Must NOT import torch, keep state between calls, or know of peers and rounds: encoding the same
values twice gives the same bytes, and error feedback belongs to the method.
"""

from typing import Protocol

from lowcomm.numerics.operations import F32
from protocols.types import LowcommError

Payload = bytes | bytearray | memoryview
WritablePayload = bytearray | memoryview


class CodecError(LowcommError):
    """The bytes are not a payload of this codec; the sender is at fault."""


class Codec(Protocol):
    """Encodes P fp32 values. A piece that begins at a multiple of `grain` can be encoded by itself.

    Finite values never become a NaN or an infinity. A NaN or an infinity is decoded as one, and may
    make all values of its block one, so a check of the decoded values finds it.

    If a is a multiple of `grain`, and b is one too or the end, then the payload of values [a, b) is
    bytes [encoded_bytes(a), encoded_bytes(b)) of the payload of the whole.
    """

    @property
    def name(self) -> str: ...

    @property
    def grain(self) -> int:
        """The number of elements that are encoded together; parts and chunks are cut at its
        multiples."""
        ...

    @property
    def reducible(self) -> bool:
        """True if owners of parts may sum decoded values and send the mean in a result codec.

        If False, the payloads themselves go to all peers (gather): a sum of sparse payloads is not
        sparse.
        """
        ...

    def encoded_bytes(self, elements: int) -> int:
        """The exact size of the payload of that many values, in bytes."""
        ...

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        """Encode `values_P`, which is contiguous, into `out`, which has exactly encoded_bytes(P)
        bytes."""
        ...

    def decode(self, payload: Payload, out_P: F32) -> None:
        """Decode the payload into `out_P`, which is contiguous. A value that was not sent becomes
        zero.

        If the payload cannot come from this codec, it raises CodecError and changes nothing. It
        does not check that values are finite; the caller may.
        """
        ...


def check_size(codec: Codec, payload: Payload, elements: int) -> None:
    """Raise CodecError if the payload does not have the size that `elements` values need."""
    expected = codec.encoded_bytes(elements)
    if len(payload) != expected:
        raise CodecError(
            f"{codec.name}: {len(payload)} bytes for {elements} values, expected {expected}"
        )
