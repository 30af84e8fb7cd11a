"""The decorator `record`: dataclasses that are never changed after they are made.

A record is `@dataclass(frozen=True, slots=True)` for the type checker, but the running program does
not stop an assignment. A frozen dataclass takes four times as long to make, and the core makes
several for each event. Must NOT know any record.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Made = TypeVar("Made")


@dataclass_transform(frozen_default=True)
def record(cls: type[Made]) -> type[Made]:
    """Make the class a dataclass with slots that is compared and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
