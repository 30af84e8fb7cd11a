"""Plain data into dataclasses, and what every number and text in a configuration must obey.

What does not fit is a ConfigError of one line, whoever sent the data. Must NOT import torch, nor
know any table or key by its name.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

from protocols.types.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHOWN_CHARS_MAX = 100
"""Of a value in a message."""
INTEGER_BITS = 64
"""Signed: every integer fits into what msgpack, numpy and torch take for a whole number."""
_QUOTED = re.compile(r"'([^']*)'")
"""A choice, as pydantic lists them."""


def validate(cls: type, raw: object, *, where: str) -> object:
    """Turn plain data into the dataclass `cls`: no unknown keys, no coercion.

    Raises ConfigError naming `where`, the key, what it is and what it should be.
    """
    # Loaded by whoever has data to check, not by whoever knows a configuration class.
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator, ValidationError

    schema = _strict(TypeAdapter(cls).core_schema)
    try:
        return SchemaValidator(schema).validate_python(raw)
    except ConfigError as error:  # From a __post_init__, which does not know whose data it is.
        raise ConfigError(f"{where}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        table, loc = _table_of(cls, first["loc"])
        key = _shown_key(loc)
        if first["type"] == "unexpected_keyword_argument":
            known = ", ".join(sorted(field.name for field in fields(table)))
            raise ConfigError(f"{where}: unknown key {key}; known here: {known}") from None
        if first["type"] == "union_tag_invalid":
            raise ConfigError(f"{where}: {_unknown_name(first, key)}") from None
        at, meant = f"{where}: {key}" if key else where, ""
        if first["type"] == "literal_error":
            meant = _meant(first["input"], _QUOTED.findall(first["msg"]))
        raise ConfigError(f"{at}: {first['msg']}, got {shown(first['input'])}{meant}") from None


def check_values(
    table: str,
    config: "DataclassInstance",
    *,
    positive: Sequence[str] = (),
    not_negative: Sequence[str] = (),
) -> None:
    """Raise ConfigError for a value of `config` that no key of its type may have.

    Floats are finite, integers fit into 64 bits, texts are printable (so no line feed, NUL or lone
    surrogate). The keys named in `positive` are > 0, those in `not_negative` >= 0.
    """
    for field in fields(config):
        why = _fault(getattr(config, field.name))
        if why:
            got = shown(getattr(config, field.name))
            raise ConfigError(f"{table}.{field.name} must {why}, got {got}")
    for name in positive:
        if getattr(config, name) <= 0:
            raise ConfigError(f"{table}.{name} must be positive, got {getattr(config, name)}")
    for name in not_negative:
        if getattr(config, name) < 0:
            raise ConfigError(f"{table}.{name} must not be negative, got {getattr(config, name)}")


def shown(value: object) -> str:
    """The value as a message may show it: on one line, and not too much of it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # An integer of over 4300 digits; a list in a list in ...
        return f"something too large to show ({type(value).__name__})"
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


def _fault(value: object) -> str:
    match value:
        case float() if not math.isfinite(value):
            return "be a finite number"
        case int() if value.bit_length() >= INTEGER_BITS:
            return f"fit into {INTEGER_BITS} bits"
        case str() if not value.isprintable():
            return "be one line of printable text"
        case tuple():
            parts = cast(tuple[object, ...], value)
            return next((why for part in parts if (why := _fault(part))), "")
        case _:
            return ""


def _strict(schema: Any) -> Any:
    """Make every leaf of a pydantic core schema strict and every dataclass closed.

    Strict mode as a whole would refuse a table where a dataclass is expected; lax mode takes "30"
    and true for 30. The dataclasses themselves stay free of pydantic.
    """
    if isinstance(schema, list):
        return [_strict(item) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in cast(dict[str, Any], schema).items()}
    kind = made.get("type")
    if kind in ("int", "float", "str", "bool"):
        made["strict"] = True
    if kind == "dataclass-args":
        made["extra_behavior"] = "forbid"
    if kind == "union" and all(choice["type"] == "dataclass" for choice in made["choices"]):
        return _by_name(made)
    return made


def _shown_key(loc: Sequence[int | str]) -> str:
    """ "model.layers"; an unknown key may be any text that somebody sent."""
    key = ".".join(map(str, loc))
    return key if key.isprintable() and len(key) <= SHOWN_CHARS_MAX else shown(key)


def _table_of(cls: Any, loc: Sequence[int | str]) -> tuple[Any, list[int | str]]:
    """The table in which the last key of `loc` is, and `loc` as a person would write it: pydantic
    puts the name of a table's kind between the table and its keys."""
    typed: list[int | str] = []
    kinds: dict[str, Any] = {}
    for number, part in enumerate(loc):
        if isinstance(part, str) and part in kinds:
            cls, kinds = kinds[part], {}
            continue
        typed.append(part)
        if isinstance(part, str) and number < len(loc) - 1:
            # A number is a place in a tuple: its type is an argument too.
            hint = get_type_hints(cls)[part]
            choices = [arg for arg in get_args(hint) if is_dataclass(arg)]
            kinds = {_kind(choice): choice for choice in choices} if len(choices) > 1 else {}
            cls = choices[0] if choices else hint
    return cls, typed


def _unknown_name(error: Any, key: str) -> str:
    """ "run.method.name is 'dilocko'; known: allreduce, diloco. Did you mean 'diloco'?" """
    name, known = str(error["ctx"]["tag"]), str(error["ctx"]["expected_tags"])
    names = sorted(part.strip("'") for part in known.split(", "))
    said = shown(error["input"].get("name"))
    return f"{key}.name is {said}; known: {', '.join(names)}{_meant(name, names)}"


def _meant(given: object, known: Sequence[str]) -> str:
    """ ". Did you mean 'int8'?" of "int9"; "" if nothing is near."""
    near = get_close_matches(given, known, n=1) if isinstance(given, str) else []
    return f". Did you mean {near[0]!r}?" if near else ""


def _kind(cls: Any) -> str:
    """Which of several tables a table is: what its key `name` says, unless it leaves it out."""
    return next(str(field.default) for field in fields(cls) if field.name == "name")


def _by_name(schema: dict[str, Any]) -> dict[str, Any]:
    """Of tables that may stand in one place, the one that the key `name` says; else the first."""
    choices = {_kind(choice["cls"]): choice for choice in schema["choices"]}
    first = next(iter(choices))

    def name(raw: object) -> object:
        if isinstance(raw, Mapping):
            return cast(Mapping[str, object], raw).get("name", first)
        return getattr(raw, "name", first)

    return {"type": "tagged-union", "choices": choices, "discriminator": name}
