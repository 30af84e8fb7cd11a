"""The Python files of this project and their syntax trees, each parsed once in a process.

Must NOT import what it parses.
"""

import ast
import gc
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("benchmarks", "sims", "lowcomm", "peers", "protocols")


@dataclass(frozen=True, slots=True)
class Source:
    """A Python file: its path from the root of the project, with slashes, and its text."""

    path: str
    text: str

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """The module first, then everything in it."""
        return parse(self.text)


@cache
def parse(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(text)))


@cache
def read_sources() -> list[Source]:
    """All files, parsed. They have a million nodes, which stay to the end: the garbage collector
    would look through them again and again, which takes four times as long as to parse them."""
    files = [
        file for folder in (*PACKAGES, "tests") for file in sorted((ROOT / folder).rglob("*.py"))
    ]
    found = [Source(file.relative_to(ROOT).as_posix(), file.read_text("utf-8")) for file in files]
    gc.disable()
    try:
        for source in found:
            parse(source.text)
        gc.freeze()
    finally:
        gc.enable()
    return found
