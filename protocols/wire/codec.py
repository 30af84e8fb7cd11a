"""Encodes and decodes messages: first the size limit, then msgpack with its limits, then exact
types.

Malformed bytes raise WireError. Must NOT know what a message leads to.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, cast

import msgpack

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages import snapshot as i
from protocols.types.errors import LogError
from protocols.types.limits import (
    CONTROL_BYTES_MAX,
    ENTRY_BYTES_MAX,
    LIST_MAX,
    PIECE_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    TEXT_MAX,
)
from protocols.wire.schemas import struct
from protocols.wire.type_codes import CODES, ENTRY_CODES, MESSAGES, REPORT_CODES
from protocols.wire.validators import WireError, short

UNPACK_LIMITS: Mapping[str, Any] = {
    "use_list": True,
    # msgpack allocates as many items as a header claims, at every depth.
    "max_array_len": LIST_MAX,
    "max_map_len": 0,
    "max_bin_len": PIECE_BYTES_MAX,
    "max_ext_len": 0,
}


def encode(message: m.Message) -> bytes:
    """Encode a message as msgpack: [type code, field, ...]."""
    packed = _packed((CODES[type(message)], *_reader(type(message))(message)))
    assert len(packed) <= CONTROL_BYTES_MAX, f"{type(message).__name__} is too long for the wire"
    return packed


def decode(payload: bytes | bytearray | memoryview, *, size_max: int) -> m.Message:
    """Decode a message of at most `size_max` bytes. Raises WireError."""
    raw = _unpack(payload, size_max)
    if not raw or type(raw[0]) is not int or raw[0] not in MESSAGES:
        raise WireError(f"unknown message type {short(raw[:1])}")
    return struct(MESSAGES[raw[0]])(raw[1:])


def encode_entry(entry: e.LogEntry) -> bytes:
    """Encode a log entry as in an Append. The hash of a lineage is taken of these bytes."""
    return _packed(entry)


def decode_entry(payload: bytes | bytearray | memoryview) -> e.LogEntry:
    """Decode a log entry. Raises WireError."""
    return cast(e.LogEntry, struct(e.LogEntry)(_unpack(payload, CONTROL_BYTES_MAX)))


def readable_bytes(entry: e.LogEntry) -> bytes:
    """The encoded entry, which every peer can decode.

    Raises LogError with the reason if it cannot be decoded: such an entry is never written. It
    costs about 0.03 ms for the Commit of 8 peers.
    """
    packed, why = encode_entry(entry), ""
    if len(packed) > ENTRY_BYTES_MAX:
        why = f"it takes {len(packed)} bytes, and at most {ENTRY_BYTES_MAX} fit into a message"
    else:
        try:
            why = "" if decode_entry(packed) == entry else "it is read back as another entry"
        except WireError as error:
            why = str(error)
    if why:
        kind = type(entry.body).__name__
        raise LogError(f"entry {entry.index} of the log, {kind}, could not be read: {why}")
    return packed


def encode_image(image: i.RunStateSnapshot) -> bytes:
    """Encode the image of a snapshot, to be sent in pieces and kept on disk."""
    return _packed(image)


def decode_image(payload: bytes) -> i.RunStateSnapshot:
    """Decode the image of a snapshot. Raises WireError."""
    return cast(
        i.RunStateSnapshot, struct(i.RunStateSnapshot)(_unpack(payload, SNAPSHOT_BYTES_MAX))
    )


def one_line(text: str) -> str:
    """Make a text fit to travel as a reason: one printable line of at most TEXT_MAX characters.

    Texts of exceptions and of users must pass through here, or the receiver ends the session for a
    malformed message.
    """
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in line[:TEXT_MAX])


def _unpack(payload: bytes | bytearray | memoryview, size_max: int) -> list[object]:
    if len(payload) > size_max:
        raise WireError(f"{len(payload)} bytes, at most {size_max} are allowed")
    try:
        raw = cast(object, msgpack.unpackb(payload, **UNPACK_LIMITS))
    except (ValueError, RecursionError) as error:  # Both mean malformed bytes.
        raise WireError("not msgpack") from error
    if not isinstance(raw, list):
        raise WireError("not a message")
    return cast(list[object], raw)


def _packed(value: object) -> bytes:
    """Pack with `_plain` for the types that msgpack does not know."""
    return cast(bytes, msgpack.packb(value, default=_plain))


def _plain(value: object) -> tuple[object, ...]:
    """The fields of a record, after its type code where several types are allowed."""
    code, read = _layout(type(value))
    return read(value) if code is None else (code, *read(value))


@cache
def _layout(kind: Any) -> tuple[int | None, Callable[[object], tuple[object, ...]]]:
    return ENTRY_CODES.get(kind) or REPORT_CODES.get(kind), _reader(kind)


@cache
def _reader(kind: Any) -> Callable[[object], tuple[object, ...]]:
    """A function that reads all fields of this record type."""
    names = tuple(field.name for field in fields(kind))
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)
