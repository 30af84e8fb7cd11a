"""Turns plain data into dataclasses, and checks every number and text in a configuration.

Data that does not fit raises a ConfigError of one line, from whatever source it came. Must NOT
import torch, nor know any table or key by its name.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

from protocols.types import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHOWN_CHARS_MAX = 100
"""Characters of a value that a message shows."""
INTEGER_BITS = 64
"""Size of a signed integer in a configuration: msgpack, numpy and torch take no larger ones."""
_QUOTED = re.compile(r"'([^']*)'")
"""One choice in pydantic's list of choices."""


def validate(cls: type, raw: object, *, where: str) -> object:
    """Turn plain data into the dataclass `cls`: no unknown keys, no coercion.

    Raises ConfigError, which names `where`, the key, its value and the rule that it breaks.
    """
    # Imported only where data is checked, not where a configuration class is used.
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator, ValidationError

    schema = _strict(TypeAdapter(cls).core_schema)
    try:
        return SchemaValidator(schema).validate_python(raw)
    except ConfigError as error:  # From a __post_init__, which does not know `where`.
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
    """Raise ConfigError if a value of `config` breaks a rule for all values of its type.

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
    """The value as text for a message: one line, at most SHOWN_CHARS_MAX characters of it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # An integer of over 4300 digits; a list nested too deep.
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
    """Make every leaf of a pydantic core schema strict, and forbid unknown keys in every dataclass.

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
    """Text such as "model.layers". An unknown key may be any text, so it may have to be
    shortened."""
    key = ".".join(map(str, loc))
    return key if key.isprintable() and len(key) <= SHOWN_CHARS_MAX else shown(key)


def _table_of(cls: Any, loc: Sequence[int | str]) -> tuple[Any, list[int | str]]:
    """(the table that has the last key of `loc`, `loc` as a person would write it). Pydantic puts
    the name of a table's kind between the table and its keys; it is removed here."""
    typed: list[int | str] = []
    kinds: dict[str, Any] = {}
    for number, part in enumerate(loc):
        if isinstance(part, str) and part in kinds:
            cls, kinds = kinds[part], {}
            continue
        typed.append(part)
        if isinstance(part, str) and number < len(loc) - 1:
            # A number is an index of a tuple: its type is among the arguments too.
            hint = get_type_hints(cls)[part]
            choices = [arg for arg in get_args(hint) if is_dataclass(arg)]
            kinds = {_kind(choice): choice for choice in choices} if len(choices) > 1 else {}
            cls = choices[0] if choices else hint
    return cls, typed


def _unknown_name(error: Any, key: str) -> str:
    """Text: "run.method.name is 'dilocko'; known: allreduce, diloco. Did you mean 'diloco'?"."""
    name, known = str(error["ctx"]["tag"]), str(error["ctx"]["expected_tags"])
    names = sorted(part.strip("'") for part in known.split(", "))
    said = shown(error["input"].get("name"))
    return f"{key}.name is {said}; known: {', '.join(names)}{_meant(name, names)}"


def _meant(given: object, known: Sequence[str]) -> str:
    """Text such as ". Did you mean 'int8'?" for "int9"; "" if no known name is near."""
    near = get_close_matches(given, known, n=1) if isinstance(given, str) else []
    return f". Did you mean {near[0]!r}?" if near else ""


def _kind(cls: Any) -> str:
    """The kind of a table among several: the default of its key `name`."""
    return next(str(field.default) for field in fields(cls) if field.name == "name")


def _by_name(schema: dict[str, Any]) -> dict[str, Any]:
    """Choose among tables that may stand in one place by the key `name`; without it, take the
    first."""
    choices = {_kind(choice["cls"]): choice for choice in schema["choices"]}
    first = next(iter(choices))

    def name(raw: object) -> object:
        if isinstance(raw, Mapping):
            return cast(Mapping[str, object], raw).get("name", first)
        return getattr(raw, "name", first)

    return {"type": "tagged-union", "choices": choices, "discriminator": name}
