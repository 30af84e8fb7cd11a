"""Values that nobody changes: messages, events, commands, log entries and what they are made of.

As `@dataclass(frozen=True, slots=True)`, but for what an assignment to a field meets: there the
type checker says no, and not the running program. To make a frozen dataclass takes four times as
long as any other, and a core makes several for each event. Must NOT know what a record says.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Made = TypeVar("Made")


@dataclass_transform(frozen_default=True)
def record(cls: type[Made]) -> type[Made]:
    """Compared and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
