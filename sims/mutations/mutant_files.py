"""Reads mutants from a user's Python file, for `--mutant FILE.py`.

The file defines MUTANTS, a sequence of `sims.mutations.patch.Mutant`:

    from protocols.rounds.fragment_rounds import FragmentRounds
    from sims.mutations.patch import Edit, Mutant

    MUTANTS = [
        Mutant("no-rebase", "Steps are lost.", Edit(FragmentRounds.applied, "rebase", "counted"))
    ]

or one function `plant()` that replaces any code (`LocalWork.counted = ...`); such a file is
one mutant, named after the file. Must NOT plant anything.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from protocols.types.errors import ConfigError
from sims.mutations.patch import Mutant, UnplantableError

FORM = "MUTANTS = [Mutant(name, why, Edit(Class.method, old, new))] or a function plant()"
LOADING = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(NameError, OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)
"""Exceptions with which the import of a file may end."""


@dataclass(frozen=True, slots=True)
class FileMutant:
    """A file with a function `plant()`."""

    name: str
    replaces: Callable[[], object]

    def plant(self) -> None:
        """Call the file's `plant()`. Raises UnplantableError."""
        try:
            self.replaces()
        except LOADING as error:
            raise UnplantableError(f"plant() raises {_shown(error)}") from error


def is_file(text: str) -> bool:
    """Is this a file's name (`FILE.py`, `FILE.py:NAME`), not that of a known mutant?"""
    return text.endswith(".py") or ".py:" in text


def read_mutants(path: str) -> Sequence[Mutant | FileMutant]:
    """Return the file's mutants, at least one. Each `Mutant` fits the source text.

    Raises ConfigError, of one line, if the file is missing, cannot be imported or has another form,
    or if the source does not contain a quoted text.
    """
    module = _load(Path(path))
    listed, plant = getattr(module, "MUTANTS", None), getattr(module, "plant", None)
    if listed is None and callable(plant):
        return [FileMutant(Path(path).stem, plant)]
    if listed is None:
        raise ConfigError(f"{path} defines no mutant; write {FORM}")
    if not isinstance(listed, Sequence) or not listed:
        raise ConfigError(f"{path}: MUTANTS must be a list of Mutant; write {FORM}")
    mutants = cast(Sequence[object], listed)
    for number, mutant in enumerate(mutants):
        if not isinstance(mutant, Mutant):
            kind = type(mutant).__name__
            raise ConfigError(f"{path}: MUTANTS[{number}] is a {kind}, not a Mutant; write {FORM}")
        try:
            mutant.check()
        except (UnplantableError, *LOADING) as error:
            raise ConfigError(f"{path}: {mutant.name!r} cannot be planted: {error}") from error
    return cast(Sequence[Mutant], mutants)


def _load(path: Path) -> ModuleType:
    if path.suffix != ".py":
        raise ConfigError(f"{path}: the name of a file of mutants ends in .py")
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location("planted", path.resolve())
    assert spec is not None, "the name ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except LOADING as error:
        raise ConfigError(f"{path} cannot be imported: {_shown(error)}") from error
    return module


def _shown(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
