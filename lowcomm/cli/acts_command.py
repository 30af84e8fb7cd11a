"""Asks a node that runs on this machine, waits for an act in the log, and prints lists.

Must NOT know what is asked for, nor import anything slow.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from protocols.types import ConfigError, LowcommError

if TYPE_CHECKING:
    from lowcomm.startup.identity import NodeRecord
    from peers.ipc import Question

WAIT_S = 20.0
"""Seconds to wait until the log holds the act; long enough for an election."""
AGAIN_S = 0.2
ASK_TIMEOUT_S = 2.0


def running(directory: Path) -> "NodeRecord":
    """The record of a node that runs. Raises ConfigError."""
    from lowcomm.startup.identity import read_record

    record = read_record(directory)
    if record is None or not Path(record.bus.removeprefix("ipc://")).exists():
        raise _none_runs(directory)
    return record


def ask_any(directory: Path, question: "Question", field: str) -> list[Mapping[str, object]]:
    """This field of the answer of the first daemon that answers, of a run's or a node's directory.
    Raises ConfigError if none does."""
    from lowcomm.cli.status import node_directories
    from peers.ipc import LinkError, ask_daemon

    for node in node_directories(directory):
        try:
            answer = ask_daemon(running(node).bus, question, timeout_s=ASK_TIMEOUT_S)
        except (ConfigError, LinkError):
            continue
        return cast(list[Mapping[str, object]], answer[field])
    raise _none_runs(directory)


def _none_runs(directory: Path) -> ConfigError:
    return ConfigError(
        f"no node runs in {directory}: give the directory of a node that does (runs/NAME/NODE)"
    )


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Print a table for people; `empty`: the line if it has no row."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table if rows else empty)


def ask(record: "NodeRecord", question: "Question", *, timeout_s: float) -> dict[str, Any]:
    """The node's answer. Raises ConfigError if it refuses, and LowcommError if it is silent."""
    from peers.ipc import LinkError, ask_daemon

    try:
        answer = ask_daemon(record.bus, question, timeout_s=timeout_s)
    except LinkError as error:
        raise LowcommError(f"{record.name} does not answer: {error}") from None
    if answer.get("error"):
        raise ConfigError(str(answer["error"]))
    return answer


def ask_run(
    record: "NodeRecord", question: "Callable[[bool], Question]", *, wait_s: float = WAIT_S
) -> dict[str, Any] | None:
    """Ask the node until the log holds the act; returns the answer, or None if that takes too long.
    `question(again)`: the question, or its repetition.

    Raises ConfigError if the run refuses, and LowcommError if the node does not answer.
    """
    deadline, again = time.monotonic() + wait_s, False
    while time.monotonic() < deadline:
        answer = ask(record, question(again), timeout_s=AGAIN_S + wait_s / 4)
        if "done" in answer:
            return answer
        again = True
        time.sleep(AGAIN_S)
    return None
