"""docs/configuration.md, generated: `python -m lowcomm.config.reference > docs/configuration.md`.

Types, defaults and texts are those of the configuration dataclasses; the text of a key is the
docstring below its field. A test compares the file with this output. Must NOT know a key by its
name, except `name`, which says the kind of a table.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from lowcomm.config.schema import NodeConfig, OptimizerConfig, RunConfig
from lowcomm.methods import RoundMethod, StepMethod

INTRODUCTION = """\
# Configuration

This file is generated from the code: `python -m lowcomm.config.reference > docs/configuration.md`.
`lowcomm config explain KEY` prints what it says of a key, and `lowcomm --install-completion` lets a
shell complete keys after `--set`.

A configuration is one TOML file with two tables.

- `[run]` is agreed by all peers: the model, the optimizer, the method, the data, and the times and
  limits of the protocol. The node that founds a run decides it. A joiner may leave `[run]` out, and
  then takes the run's values. If it gives another value, it is refused, and the message names the
  first key that differs.
- `[node]` is each node's own: its addresses, ranks and directory.

`--set TABLE.KEY=VALUE` on the command line overrides one key, and may be repeated. Values are
written as in TOML:

    lowcomm peer run.toml --new --set node.ranks=2 --set run.method.inner_steps=50

An unknown key, or a value of another type, is an error that names the key. `lowcomm init` writes a
file to begin with.

"""
SHARED: Mapping[type[Any], str] = {
    RoundMethod: "every method of rounds",
    StepMethod: "every per-step method",
    OptimizerConfig: "every optimizer",
}
"""Classes with keys that several kinds of a table share."""
NAMES = {int: "integer", float: "number", str: "string", bool: "boolean"}
"""Of types, as TOML has them."""
PLURALS = {int: "integers", float: "numbers", str: "strings"}
COLUMNS = 110
"""Of a line that is not in a table."""
HEAD = "| key | type | default | meaning |\n|---|---|---|---|\n"
KIND = "name"
"""The key that says which kind of method or optimizer a table describes."""


@dataclass(frozen=True, slots=True)
class DocumentedKey:
    """A key of a table."""

    name: str
    type: str
    default: str
    """As TOML."""
    text: str
    """Its docstring, in one line; "" if it has none."""

    @property
    def row(self) -> str:
        cells = (f"`{self.name}`", self.type, f"`{self.default}`", self.text.replace("|", r"\|"))
        return f"| {' | '.join(cells)} |\n"


@dataclass(frozen=True, slots=True)
class Section:
    """What is said of one TOML table, or of one kind of it."""

    table: str
    """The name of the TOML table, e.g. "run.method"."""
    text: str
    keys: Sequence[DocumentedKey] = ()
    of: str = ""
    """The kinds of the table that have these keys, if not all, in Markdown."""

    @property
    def title(self) -> str:
        return f"### `[{self.table}]`{self.of}" if self.of else f"## `[{self.table}]`"

    def __str__(self) -> str:
        table = f"\n{HEAD}{''.join(key.row for key in self.keys)}" if self.keys else ""
        text = textwrap.fill(self.text, COLUMNS, break_long_words=False, break_on_hyphens=False)
        return f"{self.title}\n\n{text}\n{table}"


def reference() -> str:
    """The whole document."""
    return INTRODUCTION + "\n".join(map(str, sections()))


def sections() -> Iterator[Section]:
    """One for each TOML table; where a table is of several kinds, one for each kind."""
    yield Section("run", first_words(RunConfig), keys(RunConfig))
    hints = get_type_hints(RunConfig)
    for name, kinds in ((each.name, _tables(hints[each.name])) for each in fields(RunConfig)):
        if len(kinds) == 1:
            yield Section(f"run.{name}", first_words(kinds[0]), keys(kinds[0]))
        elif kinds:
            yield from _kinds(f"run.{name}", kinds)
    yield Section("node", first_words(NodeConfig), keys(NodeConfig))


def keys(table: type[Any]) -> list[DocumentedKey]:
    """The keys of this table, without those that are tables themselves."""
    hints, texts = get_type_hints(table), _docstrings(table)
    return [
        DocumentedKey(each.name, _type(hints[each.name]), _default(each), texts.get(each.name, ""))
        for each in fields(table)
        if not _tables(hints[each.name])
    ]


def first_words(documented: type | ModuleType) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def _tables(hint: Any) -> list[type[Any]]:
    """The tables that a key of this type may hold; none if it holds a value."""
    return [
        each
        for each in (get_args(hint) or (hint,))
        if isinstance(each, type) and is_dataclass(each)
    ]


def _kinds(table: str, kinds: Sequence[type[Any]]) -> Iterator[Section]:
    """The keys that several kinds share come first; each kind has a table of its others."""
    first = _name(kinds[0])
    yield Section(table, f"`{KIND}` says which kind of table it is; without it, {first}.")
    for base, shared_by in SHARED.items():
        ours = sorted((kind for kind in kinds if issubclass(kind, base)), key=_name)
        shared = [key for key in keys(base) if key.name != KIND]
        if ours:
            text = (
                f"{first_words(base)} These keys are for {', '.join(map(_name, ours))}. "
                "If a key has another default or meaning there, the table below names it again."
            )
            yield Section(table, text, shared, of=f": {shared_by}")
        for kind in ours:
            own = [key for key in keys(kind) if key.name != KIND and key not in shared]
            # A method's class refers to its base; its module's docstring describes the method.
            source = kind if base is OptimizerConfig else sys.modules[kind.__module__]
            of = f" with `{KIND} = {_name(kind)[1:-1]}`"
            yield Section(table, first_words(source), own, of=of)


def _name(kind: type[Any]) -> str:
    """As TOML, in code quotes."""
    return next(f"`{_toml(each.default)}`" for each in fields(kind) if each.name == KIND)


def _type(hint: Any) -> str:
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return ", ".join(f"`{_toml(part)}`" for part in parts)
    if get_origin(hint) is tuple:
        count = "list of" if parts[-1] is Ellipsis else str(len(parts))
        return f"{count} {PLURALS[parts[0]]}"
    return NAMES[hint]


def _default(field: Field[Any]) -> str:
    assert field.default_factory is MISSING, "only tables have factories"
    return "" if field.default is MISSING else _toml(field.default)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple():
            return f"[{', '.join(map(_toml, cast(tuple[Any, ...], value)))}]"
        case _:
            return str(value)


def _docstrings(table: type) -> dict[str, str]:
    """Of its fields, in one line each: its own, or else those of the class it extends."""
    texts: dict[str, str] = {}
    for each in reversed(table.__mro__):
        for node in _tree(sys.modules[each.__module__]).body if is_dataclass(each) else ():
            if isinstance(node, ast.ClassDef) and node.name == each.__name__:
                texts |= _below_fields(node.body)
    return texts


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _below_fields(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
            case _:
                pass


if __name__ == "__main__":
    sys.stdout.write(reference())
