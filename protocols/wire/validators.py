"""Checks of single fields on the wire: exact types, no coercion, nothing unbounded.

Must NOT know the record types (schemas.py), nor encode or decode bytes (codec.py).
"""

import reprlib
from collections.abc import Callable
from typing import Any, cast

from protocols.types.ids import PeerId
from protocols.types.limits import NAME_MAX

_SHORT = reprlib.Repr()  # A full repr of nested lists would exceed Python's stack.
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxstring = 2, 3, 60

Check = Callable[[object], Any]


class WireError(ValueError):
    """The bytes of a sender are no valid message; the text names the field."""


def integer(limit: int) -> Check:
    def check(raw: object) -> int:
        if type(raw) is not int or not 0 <= raw < limit:
            raise WireError(f"expected an integer in [0, {limit}), got {short(raw)}")
        return raw

    return check


def text(limit: int, *, printable: bool = True) -> Check:
    """The check of a text of at most `limit` characters. Most texts are shown to people, so by
    default line breaks and escape sequences are refused."""

    def check(raw: object) -> str:
        if type(raw) is not str or len(raw) > limit or (printable and not raw.isprintable()):
            raise WireError(f"expected a text of at most {limit} characters, got {short(raw)}")
        return raw

    return check


def many(item: Check, limit: int) -> Check:
    def check(raw: object) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise WireError(f"expected a list, got {short(raw)}")
        items = cast(list[object], raw)
        if len(items) > limit:
            raise WireError(f"{len(items)} items, at most {limit} are allowed")
        return tuple(item(one) for one in items)

    return check


def numbers(limit: int, most: int) -> Check:
    """The check of a list of at most `most` integers. A list of hundreds is checked at once."""

    def check(raw: object) -> tuple[int, ...]:
        if not isinstance(raw, list):
            raise WireError(f"expected a list, got {short(raw)}")
        items = cast(list[Any], raw)
        if len(items) > most:
            raise WireError(f"{len(items)} integers, at most {most} are allowed")
        if items and (set(map(type, items)) != {int} or min(items) < 0 or max(items) >= limit):
            raise WireError(f"expected integers in [0, {limit}), got {short(items)}")
        return tuple(items)

    return check


def peer_id(raw: object) -> PeerId:
    if type(raw) is not str or not 1 <= len(raw) <= NAME_MAX or not raw.isprintable():
        raise WireError(f"expected a peer id, got {short(raw)}")
    return PeerId(raw)


def hex_digits(digits: int) -> Check:
    def check(raw: object) -> str:
        if type(raw) is not str or len(raw) not in (0, digits) or raw.strip("0123456789abcdef"):
            raise WireError(f"expected a digest of {digits} hex digits or none, got {short(raw)}")
        return raw

    return check


def flag(raw: object) -> bool:
    if type(raw) is not bool:
        raise WireError(f"expected true or false, got {short(raw)}")
    return raw


def piece(raw: object) -> bytes:
    if type(raw) is not bytes or not raw:
        raise WireError(f"expected bytes, got {short(raw)}")
    return raw


def octets(least: int, most: int) -> Check:
    def check(raw: object) -> bytes:
        if type(raw) is not bytes or not least <= len(raw) <= most:
            raise WireError(f"expected {least} to {most} bytes, got {short(raw)}")
        return raw

    return check


def optional(item: Check) -> Check:
    def check(raw: object) -> Any:
        return None if raw is None else item(raw)

    return check


def short(raw: object) -> str:
    """A short representation of a value for the text of an error."""
    return _SHORT.repr(raw)
