"""What a codec is: values of a fragment to bytes on the wire, and back.

Must NOT import torch, keep state between calls, or know of peers and rounds: encoding the same
values twice gives the same bytes, and error feedback belongs to the method.
"""

from typing import Protocol

from lowcomm.numerics.operations import F32
from protocols.types.errors import LowcommError

Payload = bytes | bytearray | memoryview
WritablePayload = bytearray | memoryview


class CodecError(LowcommError):
    """These bytes are no payload of this codec: the sender's fault."""


class Codec(Protocol):
    """Encodes P fp32 values; any piece that begins at a multiple of `grain` encodes by itself.

    Finite values never become a NaN or an infinity. A NaN or an infinity that is sent stays one,
    and may make all of its block one: who looks at the decoded values sees it.

    The payload of values [a, b) is bytes [encoded_bytes(a), encoded_bytes(b)) of the payload of
    the whole whenever a is a multiple of `grain`, and b is one too or the end.
    """

    @property
    def name(self) -> str: ...

    @property
    def grain(self) -> int:
        """Elements that are encoded together; parts and chunks are cut at its multiples."""
        ...

    @property
    def reducible(self) -> bool:
        """Whether part owners may sum what they decode and send the mean in a result codec.

        If not, the payloads themselves go to everybody (gather): a sum of sparse ones is no longer
        sparse.
        """
        ...

    def encoded_bytes(self, elements: int) -> int:
        """The exact size of the payload of that many values."""
        ...

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        """Fill `out`, exactly encoded_bytes(P) long. `values_P` is contiguous."""
        ...

    def decode(self, payload: Payload, out_P: F32) -> None:
        """Fill `out_P`, contiguous; zero where nothing was sent.

        Raises CodecError, and changes nothing, when the payload cannot be ours. Whether the values
        are finite is the caller's question.
        """
        ...


def check_size(codec: Codec, payload: Payload, elements: int) -> None:
    """Raise CodecError for a payload that is not as long as that many values make it."""
    expected = codec.encoded_bytes(elements)
    if len(payload) != expected:
        raise CodecError(
            f"{codec.name}: {len(payload)} bytes for {elements} values, expected {expected}"
        )
