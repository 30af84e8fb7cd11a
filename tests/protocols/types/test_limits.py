"""At its limit every field of every message and entry is read; one beyond it is not."""

import inspect
from typing import Any

import pytest

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.wire.schemas import SHAPES, struct
from protocols.wire.type_codes import ENTRIES
from protocols.wire.validators import Check, WireError

Edges = tuple[list[Any], list[Any]]
"""Raw values that are read, and some that are not."""


def kind(check: Check) -> tuple[str, dict[str, Any]]:
    """Which maker of protocols/wire/validators.py or wire/schemas.py made it, and with what."""
    name = check.__qualname__.partition(".")[0]
    return name, dict(inspect.getclosurevars(check).nonlocals)


def least(check: Check) -> Any:
    """The smallest raw value that is read."""
    name, made_with = kind(check)
    match name:
        case "integer":
            return 0
        case "text" | "hex_digits":
            return ""
        case "peer_id":
            return "p"
        case "flag":
            return False
        case "piece":
            return b"x"
        case "octets":
            return bytes(made_with["least"])
        case "many" | "numbers":
            return []
        case "optional":
            return None
        case "struct":
            return [least(each) for each in SHAPES[made_with["cls"]].values()]
        case "_coded":
            code = min(made_with["table"])
            return [code, *(least(each) for each in SHAPES[made_with["table"][code]].values())]
        case _:
            assert name == "_only"
            (cls, *_) = made_with["kinds"]
            (code,) = [code for code, each in ENTRIES.items() if each is cls]
            return [code, *(least(each) for each in SHAPES[cls].values())]


def edges(check: Check) -> Edges:
    name, made_with = kind(check)
    match name:
        case "integer":
            limit = made_with["limit"]
            return [0, limit - 1], [limit, -1, True, 1.0, None]
        case "text":
            limit, beyond = made_with["limit"], ["\n", "\x1b", "\u2028"]
            long = ["x" * (limit + 1), "\u00e4" * (limit + 1), b"x", None]
            return ["x" * limit, "\u00e4" * limit], long + beyond * made_with["printable"]
        case "hex_digits":
            digits = made_with["digits"]
            return ["", "0f" * (digits // 2)], [
                "0" * (digits + 1),
                "0" * (digits - 1),
                "g" * digits,
            ]
        case "peer_id":
            return ["p" * 128], ["p" * 129, "", "a\nb", 1]
        case "flag":
            return [True, False], [0, 1, None]
        case "piece":
            return [b"x"], [b"", "x"]
        case "octets":
            fewest, most = made_with["least"], made_with["most"]
            beyond: list[Any] = [bytes(most + 1), *([bytes(fewest - 1)] if fewest else [])]
            return [bytes(fewest), bytes(most)], beyond
        case "many":
            item, limit = least(made_with["item"]), made_with["limit"]
            return [[item] * limit], [[item] * (limit + 1), None, "x"]
        case "numbers":
            limit, most = made_with["limit"], made_with["most"]
            return [[limit - 1] * most], [[0] * (most + 1), [limit], [-1], [True], None, "x"]
        case "optional":
            at, beyond = edges(made_with["item"])
            return [None, *at], [each for each in beyond if each is not None]
        case _:
            return [least(check)], [None, [], 7]


@pytest.mark.parametrize("cls", list(SHAPES), ids=lambda cls: cls.__name__)
def test_each_field_is_read_up_to_its_limit_and_no_further(cls: type) -> None:
    checks = SHAPES[cls]
    plain = [least(check) for check in checks.values()]
    assert isinstance(struct(cls)(plain), cls)
    for place, (name, check) in enumerate(checks.items()):
        at, beyond = edges(check)
        for raw in at:
            assert isinstance(struct(cls)([*plain[:place], raw, *plain[place + 1 :]]), cls)
        for raw in beyond:
            with pytest.raises(WireError, match=rf"^{cls.__name__}\.{name}: "):
                struct(cls)([*plain[:place], raw, *plain[place + 1 :]])


def test_the_shapes_are_those_of_the_types() -> None:
    """So that the test above looks at every field there is."""
    for cls, checks in SHAPES.items():
        assert tuple(checks) == tuple(inspect.signature(cls).parameters), cls.__name__
    assert {e.Run, e.Commit, m.Append, m.ContributionOffered} <= SHAPES.keys()
