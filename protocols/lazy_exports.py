"""Lets a room's `__init__` name its exports without importing them (PEP 562).

A process pays only for the modules that it uses: a rank loads no consensus, `lowcomm --help` no
training. Must NOT import anything when a room is imported.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(room: str, exports: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a room. `exports`: for each module of the room, the names that it
    defines, divided by spaces. (A module that is exported as a whole needs no entry.)

    Each name is resolved once, when it is first imported. No module of the room may have the name
    of an export. The room's `if TYPE_CHECKING` block imports the same names, for type checkers.
    """
    module_of = {
        name: f"{room}.{module}" for module, names in exports.items() for name in names.split()
    }
    assert module_of.keys().isdisjoint(exports), "an imported module would take the export's place"

    def resolve(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[room], name, value)
        return value

    return resolve
