"""How a bug is planted into the protocol core.

A mutant is a change of its source text, so that it reads as the diff that a careless commit would
make, and so that it cannot be planted any more, loudly, when the line that it changes is another
one. Must NOT run anything (mutants.py), nor be planted in a process that does anything else.
"""

import inspect
import textwrap
from dataclasses import dataclass
from types import CodeType, FunctionType


class UnplantableError(Exception):
    """The source does not read as it did when the mutant was written: write it anew."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In one function, method or property, `old` occurs once and becomes `new`."""

    what: object
    old: str
    new: str

    def plant(self) -> None:
        """Raises UnplantableError."""
        self.function.__code__ = self.changed().__code__  # Whoever imported it has the bug too.

    def changed(self) -> FunctionType:
        """The function with the bug in it. Raises UnplantableError."""
        before = self.function
        text = textwrap.dedent(inspect.getsource(before))
        if text.count(self.old) != 1:
            times = text.count(self.old)
            raise UnplantableError(f"{before.__qualname__} has {times} times: {self.old}")
        module = compile(text.replace(self.old, self.new), f"mutant of {before}", "exec")
        (code,) = [x for x in module.co_consts if isinstance(x, CodeType)]
        changed = FunctionType(code, before.__globals__, before.__name__, before.__defaults__)
        changed.__kwdefaults__ = before.__kwdefaults__
        return changed

    @property
    def function(self) -> FunctionType:
        found = self.what.fget if isinstance(self.what, property) else self.what
        assert isinstance(found, FunctionType), f"{self.what} is no function"
        return found


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug, and why it is one."""

    name: str
    why: str
    edit: Edit
    also: Edit | None = None

    def plant(self) -> None:
        """Into the classes of this process, for good. Raises UnplantableError."""
        self.edit.plant()
        if self.also is not None:
            self.also.plant()
