"""Dataclasses as strict msgpack maps: the format of everything that stays inside a node.

A record is {"type": class name in lower case, field: value, ...}; a dataclass inside a record is an
array of its fields. Decoding takes exact types only: no coercion, no unknown and no missing field.
On a stream, a frame is a u32 length (little endian) and a record. Must NOT know any message, and
must NOT read or write.
"""

import functools
import struct
from collections.abc import Callable, Mapping
from dataclasses import astuple, fields, is_dataclass
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import msgpack

from protocols.types import LowcommError

RECORD_BYTES_MAX = 1 << 20
_LENGTH = struct.Struct("<I")

M = TypeVar("M")


class LinkError(LowcommError):
    """The other end broke the format or the order of the messages, or is gone."""


def kinds_of(*kinds: type[M]) -> dict[str, type[M]]:
    """The table of accepted messages that `decode` takes."""
    return {kind.__name__.lower(): kind for kind in kinds}


def encode(record: object) -> bytes:
    """Raises LinkError when the record is larger than any receiver takes."""
    kind = type(record)
    values = {name: getattr(record, name) for name in _converters(kind)}
    values["type"] = kind.__name__.lower()
    payload = cast("bytes", msgpack.packb(values, default=astuple))  # pyright: ignore
    if len(payload) > RECORD_BYTES_MAX:
        raise LinkError(f"{kind.__name__} has {len(payload)} bytes, at most {RECORD_BYTES_MAX}")
    return payload


def decode(payload: bytes, kinds: Mapping[str, type[M]]) -> M:
    """The record in `payload`. Raises LinkError that names the wrong field."""
    if len(payload) > RECORD_BYTES_MAX:
        raise LinkError(f"a record of {len(payload)} bytes, at most {RECORD_BYTES_MAX}")
    try:
        raw = cast("object", msgpack.unpackb(payload, use_list=False))  # pyright: ignore
    except (ValueError, RecursionError) as error:  # Both mean malformed bytes.
        raise LinkError(f"undecodable record: {error}") from error
    if not isinstance(raw, dict):
        raise LinkError(f"a record must be a map, got {_shown(raw)}")
    values = cast("dict[object, object]", raw)
    tag = values.pop("type", None)
    kind = kinds.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise LinkError(f"unexpected type {_shown(tag)}, not one of {', '.join(kinds)}")
    converters = _converters(kind)
    for name in values:
        if name not in converters:
            raise LinkError(f"{tag}: unknown field {_shown(name)}")
    checked: dict[str, Any] = {}
    for name, convert in converters.items():
        if name not in values:
            raise LinkError(f"{tag}: field {name} is missing")
        try:
            checked[name] = convert(values[name])
        except ValueError as error:
            raise LinkError(f"{tag}: field {name} must be {error}") from error
    return kind(**checked)


def frame(record: object) -> bytes:
    """The record as it goes into a stream. Raises LinkError as `encode` does."""
    payload = encode(record)
    return _LENGTH.pack(len(payload)) + payload


def take_frame(buffer: bytearray) -> bytes | None:
    """Cut the first whole frame's record off `buffer`. Raises LinkError if it is too long."""
    if len(buffer) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(buffer)
    if size > RECORD_BYTES_MAX:
        raise LinkError(f"a frame of {size} bytes, at most {RECORD_BYTES_MAX}")
    end = _LENGTH.size + size
    if len(buffer) < end:
        return None
    payload = bytes(buffer[_LENGTH.size : end])
    del buffer[:end]
    return payload


Converter = Callable[[object], Any]
"""Returns its argument in the field's type; raises ValueError that says what it must be."""


@functools.cache
def _converters(kind: type) -> dict[str, Converter]:
    return {field.name: _converter(field.type) for field in fields(kind)}


def _converter(wanted: Any) -> Converter:
    """What a field of this annotation takes. Another annotation is a programmer's error."""
    if wanted in _SCALARS:
        return _SCALARS[wanted]
    if get_origin(wanted) is Literal:
        return functools.partial(_to_choice, get_args(wanted))
    if get_origin(wanted) is tuple and get_args(wanted)[1:] == (...,):
        return functools.partial(_to_array, _converter(get_args(wanted)[0]))
    assert is_dataclass(wanted), f"records hold no {wanted}"
    return functools.partial(_to_nested, cast("type", wanted))


def _to_integer(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"an integer from 0 to 2**63 - 1, got {_shown(value)}")
    return value


def _to_text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"a text, got {_shown(value)}")
    return value


def _to_octets(value: object) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"bytes, got {_shown(value)}")
    return value


def _to_flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"a truth value, got {_shown(value)}")
    return value


def _to_real(value: object) -> float:
    if type(value) is not float:
        raise ValueError(f"a float, got {_shown(value)}")
    return value


def _to_choice(choices: tuple[str, ...], value: object) -> str:
    if type(value) is not str or value not in choices:
        raise ValueError(f"one of {', '.join(choices)}, got {_shown(value)}")
    return value


def _to_array(convert: Converter, value: object) -> tuple[Any, ...]:
    return tuple(convert(item) for item in _items(value))


def _to_nested(kind: type, value: object) -> object:
    converters = _converters(kind)
    items = _items(value)
    if len(items) != len(converters):
        raise ValueError(f"[{', '.join(converters)}] each, got {len(items)} items")
    return kind(*(convert(item) for convert, item in zip(converters.values(), items, strict=True)))


def _items(value: object) -> tuple[object, ...]:
    if not isinstance(value, tuple):
        raise ValueError(f"an array, got {_shown(value)}")  # noqa: TRY004
    return cast("tuple[object, ...]", value)


_SCALARS: Mapping[Any, Converter] = {
    int: _to_integer,
    str: _to_text,
    bytes: _to_octets,
    bool: _to_flag,
    float: _to_real,
}


def _shown(value: object) -> str:
    """Short, and safe for values that nest deeper than `repr` can follow."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return f"{value!r:.40}"
    return type(value).__name__
