"""The command `lowcomm config explain`: what a configuration key means, from its docstring.

Must NOT import anything slow: the command line imports this module before it listens.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from protocols.types import ConfigError

if TYPE_CHECKING:
    from lowcomm.config.reference import DocumentedKey, Section

COLUMNS = 88


def setting_names(incomplete: str) -> list[str]:
    """Beginnings of values of --set, for the completion of a shell."""
    return [f"{name}=" for name in key_names(incomplete)]


def key_names(incomplete: str) -> list[str]:
    """The full names of keys that begin with `incomplete`, for the completion of a shell."""
    from lowcomm.config.reference import sections

    names = (f"{section.table}.{each.name}" for section in sections() for each in section.keys)
    return [*dict.fromkeys(name for name in names if name.startswith(incomplete))]


def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="[KEY]",
            help="A key (run.method.inner_steps), its last word (inner_steps), or a table "
            "(run.method). Without it, all tables.",
            autocompletion=key_names,
        ),
    ] = "",
) -> None:
    """Say what KEY means, its type and its default.

    \b
    Examples:
      lowcomm config explain run.method.inner_steps
      lowcomm config explain outer_state
      lowcomm config explain run.method
    """
    from lowcomm.config.reference import sections

    every = [*sections()]
    word = key.strip().strip("[]")
    if not word:
        print("\n\n".join(_paragraph(section) for section in every))  # noqa: T201
        return
    found = [_whole(section) for section in every if section.table == word]
    found = found or [
        _entry(section, each)
        for section in every
        for each in section.keys
        if word in (each.name, f"{section.table}.{each.name}")
    ]
    if not found:
        raise ConfigError(_unknown(word, every))
    print("\n\n".join(found))  # noqa: T201


def _unknown(word: str, every: "list[Section]") -> str:
    """What to say of a key that there is not, with the most similar ones."""
    from difflib import get_close_matches

    by_last = {each.name: f"{one.table}.{each.name}" for one in every for each in one.keys}
    names = {**by_last, **{full: full for full in by_last.values()}}
    close = [names[name] for name in get_close_matches(word, names, n=3)]
    alike = dict.fromkeys(close) or dict.fromkeys(one.table for one in every)
    return f"there is no key {word}: try `lowcomm config explain` with {', '.join(alike)}"


def _paragraph(section: "Section") -> str:
    return "\n".join([_plain(section.title.lstrip("# ")), *_wrapped(section.text)])


def _whole(section: "Section") -> str:
    return "\n\n".join([_paragraph(section), *(_entry(section, each) for each in section.keys)])


def _entry(section: "Section", key: "DocumentedKey") -> str:
    """The key with its table, type, default and meaning."""
    default = key.default or "none: it must be given"
    first = f"{section.table}.{key.name} = {default}    ({_plain(key.type)}){_plain(section.of)}"
    return "\n".join([first, *_wrapped(key.text)])


def _wrapped(text: str) -> Iterator[str]:
    import textwrap

    yield from textwrap.wrap(
        _plain(text),
        COLUMNS,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """Without the marks of Markdown."""
    return text.replace("`", "")
