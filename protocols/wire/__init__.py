"""Bytes to records and back.

In: bytes that any peer may have sent. Out: records of protocols/messages, each field checked for
type, range and size; bytes from records. Malformed bytes raise WireError and change nothing. Must
NOT trust a length, a count or a text before it is checked, and must not know what a message leads
to.

Start reading: codec.py, then schemas.py for the fields of each record.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.wire import codec
    from protocols.wire.codec import (
        decode_entry,
        decode_image,
        encode_entry,
        encode_image,
        one_line,
    )
    from protocols.wire.frozen_layout import FROZEN_TYPES, pack_frozen, unpack_frozen
    from protocols.wire.layout import pack_layout, split_layout, unpack_layout
    from protocols.wire.validators import WireError, short

__all__ = [
    "FROZEN_TYPES",
    "WireError",
    "codec",
    "decode_entry",
    "decode_image",
    "encode_entry",
    "encode_image",
    "one_line",
    "pack_frozen",
    "pack_layout",
    "short",
    "split_layout",
    "unpack_frozen",
    "unpack_layout",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "codec": "decode_entry decode_image encode_entry encode_image one_line",
        "frozen_layout": "FROZEN_TYPES pack_frozen unpack_frozen",
        "layout": "pack_layout split_layout unpack_layout",
        "validators": "WireError short",
    },
)
