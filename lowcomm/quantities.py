"""Quantities as a user writes them: 100mbit, 50ms, 1%. Must NOT know their purpose."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from protocols.types import ConfigError


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one kind of quantity."""

    factors: Mapping[str, float]
    """By unit: the factor to the unit in which the code counts."""
    example: str


RATE = Units({"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}, "100mbit")
"""To bits per second. As in `tc`, without its `bps`, which means bytes."""
TIME = Units({"us": 1e-6, "ms": 1e-3, "s": 1.0}, "50ms")
SHARE = Units({"%": 0.01}, "1%")
SIZE = Units(
    {
        "b": 1.0,
        "kb": 1e3,
        "mb": 1e6,
        "gb": 1e9,
        "tb": 1e12,
        "kib": 2.0**10,
        "mib": 2.0**20,
        "gib": 2.0**30,
        "tib": 2.0**40,
    },
    "64gib",
)
"""To bytes."""
COUNT = Units({"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}, "1.3b")
"""Of a model's parameters."""

_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([a-z%]*)", re.ASCII)


def parse(text: str, units: Units, *, what: str) -> float:
    """The quantity in the unit in which the code counts (`Units`). 0 needs no unit.

    `what`: the name by which the user knows the value, such as --rate. Raises ConfigError.
    """
    match = _QUANTITY.fullmatch(text.strip().lower())
    number, unit = match.groups() if match else ("", "")
    if match and unit in units.factors:
        return float(number) * units.factors[unit]
    if match and not unit and float(number) == 0:
        return 0.0
    known = ", ".join(unit for unit in units.factors if unit)
    raise ConfigError(
        f"{what} {text!r}: write a number and its unit ({known}), such as {units.example}"
    )


def show(value: float, units: Units) -> str:
    """The value as text, in the largest unit of which it is at least 1."""
    by_size = sorted((factor, unit) for unit, factor in units.factors.items())
    fitting = [each for each in by_size if value >= each[0]]
    factor, unit = fitting[-1] if fitting else by_size[0]
    return f"{value / factor:.4g}{unit}"
