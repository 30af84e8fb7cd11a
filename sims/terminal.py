"""Progress bars and error messages of commands, on the standard error.

Must NOT print a result: that goes to the standard output.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from protocols.types import ConfigError, LowcommError

Tell = Callable[[str], None]
"""Prints a line to the standard error, above the bar if there is one."""
Advance = Callable[[str], None]
"""Counts one more item as done, and shows the text beside the bar."""


@contextmanager
def bar(what: str, total: int | None) -> Generator[tuple[Advance, Tell]]:
    """A progress bar on the standard error: functions that advance it and that print above it.
    `total`: the number of items; None if it is not known."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task(what, total=total)

        def advance(text: str) -> None:
            progress.update(task, advance=1, description=f"{what} {text}".strip())

        def tell(text: str) -> None:
            if shown:
                progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)  # noqa: T201

        yield advance, tell


def run(command: Callable[..., None], *, name: str | None = None) -> None:
    """Run a command with the arguments of the command line. An expected error is one line; the exit
    status is 2 for a mistake in the arguments, else 1. `name`: of the program in the usage text, if
    it is not that of the module."""
    app = typer.Typer(add_completion=False)
    app.command()(command)
    try:
        app(prog_name=name)
    except LowcommError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2 if isinstance(error, ConfigError) else 1)
