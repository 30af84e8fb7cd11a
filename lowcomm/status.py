"""Asks the daemons of a run on this machine over their buses. Must NOT change anything."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lowcomm.identity import RECORD, read_record
from protocols.errors import ConfigError

ASK_TIMEOUT_S = 2.0


def node_directories(directory: Path) -> list[Path]:
    """The node's own directory, or all those in a run directory."""
    if (directory / RECORD).exists():
        return [directory]
    found = sorted(path.parent for path in directory.glob(f"*/{RECORD}"))
    if not found:
        raise ConfigError(f"{directory} holds no node: give a directory such as runs/NAME")
    return found


def ask(directory: Path, *, timeout_s: float = ASK_TIMEOUT_S) -> dict[str, object] | None:
    """The status of the daemon of a node directory; None if none answers."""
    from peers.bus import Status, ask_daemon
    from peers.records import LinkError

    record = read_record(directory)
    if record is None or not Path(record.bus.removeprefix("ipc://")).exists():
        return None
    try:
        return ask_daemon(record.bus, Status(), timeout_s=timeout_s)
    except LinkError:
        return None


def ask_all(directory: Path) -> list[dict[str, object]]:
    """Every daemon that answers. Raises ConfigError when there is no node at all."""
    answers = [ask(path) for path in node_directories(directory)]
    return [answer for answer in answers if answer is not None]


def print_table(answers: Sequence[Mapping[str, object]]) -> None:
    """For people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in ("peer", "state", "waits for", "outer step", "inner steps", "loss", "address"):
        table.add_column(column)
    for answer in answers:
        loss = answer.get("loss")
        table.add_row(
            str(answer.get("name")),
            str(answer.get("state")),
            str(answer.get("reason") or ""),
            f"{answer.get('outer_step')}/{answer.get('outer_steps')}",
            str(answer.get("inner_steps")),
            f"{loss:.3f}" if isinstance(loss, float) else "",
            str(answer.get("address")),
        )
    Console().print(table if answers else "no daemon of this run answers")
