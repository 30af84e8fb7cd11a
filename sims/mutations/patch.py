"""Plants a bug into a process.

A mutant is a change of source text: it reads as the diff of a careless commit, and planting it
fails with an error once its line has changed. Must NOT run anything (mutants.py, shell_mutants.py).
Must NOT be used in a process that does anything else.
"""

import builtins
import dis
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType


class UnplantableError(Exception):
    """The source has changed since the mutant was written: write the mutant anew."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one function, method or property: `old` occurs once and becomes `new`."""

    what: object
    old: str
    new: str

    def plant(self) -> None:
        """Change the function in this process. Raises UnplantableError."""
        self.function.__code__ = self.changed().__code__  # Its importers have the bug too.

    def changed(self) -> FunctionType:
        """Return the function with the bug in it. Raises UnplantableError."""
        before = self.function
        text = textwrap.dedent(inspect.getsource(before))
        if text.count(self.old) != 1:
            where, times = before.__qualname__, text.count(self.old)
            raise UnplantableError(f"{where} has {times} times, not once: {self.old!r}")
        module = compile(text.replace(self.old, self.new), f"mutant of {before}", "exec")
        # There may be other code objects, of lambdas among its defaults.
        codes = [x for x in module.co_consts if isinstance(x, CodeType)]
        (code,) = [x for x in codes if x.co_name == before.__name__]
        if code.co_freevars != before.__code__.co_freevars:
            raise UnplantableError(f"{before.__qualname__} is a closure, or becomes one")
        known = before.__globals__.keys() | vars(builtins).keys()
        # A sweep would take the NameError for the bug's effect.
        if lost := set(_globals_of(code)) - known:
            names = ", ".join(sorted(lost))
            raise UnplantableError(f"{before.__qualname__} knows no {names}: {self.new!r}")
        # Likewise an AttributeError. The module's text has each attribute that the class has.
        around = inspect.getsource(inspect.getmodule(before) or before)
        for name in re.findall(r"\bself\.(\w+)", self.new):
            if not re.search(rf"\bself\.{name}\b|\bdef {name}\b|^ +{name}:", around, re.MULTILINE):
                raise UnplantableError(f"{before.__qualname__} has no self.{name}: {self.new!r}")
        changed = FunctionType(code, before.__globals__, before.__name__, before.__defaults__)
        changed.__kwdefaults__ = before.__kwdefaults__
        return changed

    @property
    def function(self) -> FunctionType:
        """The function to change. Raises UnplantableError."""
        found = self.what
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, MethodType):  # A class method, such as `Wal.open`.
            found = found.__func__
        # A context manager's decorator wraps the generator that has the source text.
        found = inspect.unwrap(found) if callable(found) else found
        if not isinstance(found, FunctionType):
            raise UnplantableError(f"{self.what!r} is no function, method or property in Python")
        return found


def _globals_of(code: CodeType) -> Iterator[str]:
    """The global names that this code reads, and those that the code inside it does."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug, and the reason why it is one."""

    name: str
    why: str
    edit: Edit
    also: Edit | None = None
    tests: tuple[str, ...] = ()
    """Test files that catch it, relative to the repository's root; empty: a sweep does."""

    def check(self) -> None:
        """Raise UnplantableError if the source does not contain the quoted text. Plants nothing."""
        for edit in (self.edit, self.also):
            if edit is not None:
                edit.changed()

    def plant(self) -> None:
        """Change the classes of this process, for good. Raises UnplantableError."""
        self.edit.plant()
        if self.also is not None:
            self.also.plant()
