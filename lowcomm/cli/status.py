"""The status of a run's daemons on this machine, asked over their buses, and whether it has ended.

Must NOT change anything.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from lowcomm.cli.acts_command import utc
from lowcomm.reports.figure_texts import bytes_text, milliseconds_text
from lowcomm.startup.identity import node_directories, read_record, runs
from lowcomm.startup.running_status import ASK_TIMEOUT_S, ask
from protocols.types import ConfigError

NOT_RUNNING = "not running"
TOLD_WAIT_S = 1.0
"""Waits are shown with their times if they last at least so many seconds."""


def ask_all(directory: Path) -> list[dict[str, object]]:
    """For each node the answer of its daemon, or the reason why there is none. An empty list if no
    daemon runs. Raises ConfigError if there is no node."""
    lines = [_line(path) for path in node_directories(directory)]
    return lines if any(line["state"] != NOT_RUNNING for line in lines) else []


def _line(directory: Path) -> dict[str, object]:
    try:
        answer, record = ask(directory), read_record(directory)
    except ConfigError as error:
        return {"name": directory.name, "state": "unreadable", "reason": str(error)}
    if answer is not None:
        return answer
    assert record is not None, "it is the directory of a node"
    line: dict[str, object] = {"peer": record.peer, "name": record.name}
    if not runs(directory, record):
        return {**line, "state": NOT_RUNNING}
    why = f"no answer within {ASK_TIMEOUT_S:g} s: see `ps -p {record.pid}`"
    return {**line, "state": "silent", "reason": why, "address": record.address}


def finished(directories: Sequence[Path]) -> str:
    """A sentence, if the last daemon of one of these nodes reached the end of the run; else "".
    Also "" if a node was told to train a finished run on, and has not reached the new end."""
    from lowcomm.reports.events import Checkpoint, Finished, Forked, Start
    from lowcomm.reports.timeline import read_timeline

    over = ""
    for directory in directories:
        outer_steps, kept, goes_on = 0, "", False
        for event in read_timeline(directory).events:
            match event:
                case Start():
                    outer_steps = 0
                case Finished():
                    outer_steps, goes_on = event.outer_steps, False
                case Forked() if outer_steps:
                    outer_steps, goes_on = 0, True
                case Checkpoint():
                    kept = f"; its last checkpoint is {event.path}"
                case _:
                    pass
        if goes_on:
            return ""
        if outer_steps and not over:
            over = f"finished after {outer_steps} outer steps: nothing to resume{kept}"
    return over


def print_tables(answers: Sequence[Mapping[str, object]]) -> None:
    """Print the answers as tables for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    if not answers:
        console.print("no daemon of this run answers: it has ended, or runs on another machine")
        return
    does = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("peer", "state", "outer step", "inner steps", "loss", "waits for"):
        does.add_column(column, overflow="fold")
    moves = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("peer", "address"):
        moves.add_column(column, overflow="fold")
    for column in ("out/s", "in/s", "loop lag"):
        moves.add_column(column, justify="right", no_wrap=True)
    for answer in answers:
        loss = answer.get("loss")
        does.add_row(
            _text(answer, "name"),
            _text(answer, "state"),
            f"{_text(answer, 'outer_step')}/{_text(answer, 'outer_steps')}".strip("/"),
            _text(answer, "inner_steps"),
            f"{loss:.3f}" if isinstance(loss, float) else "",
            _wait(answer),
        )
        moves.add_row(
            _text(answer, "name"),
            _text(answer, "address"),
            _rate(answer, "sent_bytes_per_s"),
            _rate(answer, "received_bytes_per_s"),
            _lag(answer),
        )
    console.print(does, "", moves)
    newest = max(answers, key=lambda answer: cast(int, answer.get("outer_step") or 0))
    if newest.get("samples"):
        again = f", {newest['samples_again']} leased again" * bool(newest.get("samples_again"))
        console.print(f"samples: {newest['samples']} committed{again}")


def _wait(answer: Mapping[str, object]) -> str:
    """The reason of the wait, and the seconds that it has lasted and may still last."""
    reason, since_s, until_s = (answer.get(key) for key in ("reason", "since_s", "until_s"))
    if not reason:
        return ""
    paused_at = answer.get("paused_at")
    times = [f"since {utc(paused_at)}"] if isinstance(paused_at, int) and paused_at else []
    times += [f"for {since_s:.0f} s"] if _at_least(since_s) else []
    times += [f"{until_s:.0f} s left"] if _at_least(until_s) else []
    return _text(answer, "reason") + (f" ({', '.join(times)})" if times else "")


def _rate(answer: Mapping[str, object], key: str) -> str:
    value = answer.get(key)
    return bytes_text(value) if isinstance(value, int | float) else ""


def _lag(answer: Mapping[str, object]) -> str:
    """The 99th percentile of the event loop's delays, as text."""
    value = answer.get("lag_p99_s")
    return milliseconds_text(value) if isinstance(value, int | float) else ""


def _at_least(seconds: object) -> bool:
    return isinstance(seconds, int | float) and seconds >= TOLD_WAIT_S


def _text(answer: Mapping[str, object], key: str) -> str:
    """The value as text, without control characters, which the name of another node may contain."""
    from lowcomm.reports.timeline import printable

    return printable(str(answer.get(key, "")))
