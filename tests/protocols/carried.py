"""What a peer sends arrives as bytes: here each message is encoded, decoded, and the same again."""

from protocols.messages.peer import Control
from protocols.types.limits import CONTROL_BYTES_MAX
from protocols.wire import codec


def carried(message: Control) -> Control:
    """The same message, which its receiver can read; AssertionError or WireError if it cannot."""
    decoded = codec.decode(codec.encode(message), size_max=CONTROL_BYTES_MAX)
    assert decoded == message
    return message
