"""What a peer sends arrives as bytes: here each message is encoded, decoded, and the same again."""

from protocols import wire
from protocols.limits import CONTROL_BYTES_MAX
from protocols.messages import Control


def carried(message: Control) -> Control:
    """The same message, which its receiver can read; AssertionError or WireError if it cannot."""
    decoded = wire.decode(wire.encode(message), size_max=CONTROL_BYTES_MAX)
    assert decoded == message
    return message
