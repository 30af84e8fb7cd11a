"""How a bug is planted into a process.

A mutant is a change of source text, so that it reads as the diff that a careless commit would
make, and so that it cannot be planted any more, loudly, when the line that it changes is another
one. Must NOT run anything (mutants.py, shell_mutants.py), nor be planted in a process that does
anything else.
"""

import inspect
import textwrap
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType


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
            where, times = before.__qualname__, text.count(self.old)
            raise UnplantableError(f"{where} has {times} times, not once: {self.old!r}")
        module = compile(text.replace(self.old, self.new), f"mutant of {before}", "exec")
        # Beside the function's there may be that of a lambda among its defaults.
        codes = [x for x in module.co_consts if isinstance(x, CodeType)]
        (code,) = [x for x in codes if x.co_name == before.__name__]
        if code.co_freevars != before.__code__.co_freevars:
            raise UnplantableError(f"{before.__qualname__} is a closure, or becomes one")
        changed = FunctionType(code, before.__globals__, before.__name__, before.__defaults__)
        changed.__kwdefaults__ = before.__kwdefaults__
        return changed

    @property
    def function(self) -> FunctionType:
        """Raises UnplantableError."""
        found = self.what
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, MethodType):  # Of a class: `Wal.open`.
            found = found.__func__
        # A context manager's decorator wraps the generator that has the source text.
        found = inspect.unwrap(found) if callable(found) else found
        if not isinstance(found, FunctionType):
            raise UnplantableError(f"{self.what!r} is no function, method or property in Python")
        return found


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug, and why it is one."""

    name: str
    why: str
    edit: Edit
    also: Edit | None = None
    tests: tuple[str, ...] = ()
    """The test files that notice it, from the repository's root; empty: a sweep does."""

    def check(self) -> None:
        """Raises UnplantableError if the source reads otherwise. Plants nothing."""
        for edit in (self.edit, self.also):
            if edit is not None:
                edit.changed()

    def plant(self) -> None:
        """Into the classes of this process, for good. Raises UnplantableError."""
        self.edit.plant()
        if self.also is not None:
            self.also.plant()
