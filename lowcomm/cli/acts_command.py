"""Asks a node that runs on this machine, with an operator's signature, waits for an act in the log,
and prints lists.

Must NOT know what is asked for, nor import anything slow.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from protocols.types import ConfigError, LowcommError

if TYPE_CHECKING:
    from lowcomm.startup.identity import NodeRecord
    from peers.ipc import Question, StopPeer
    from peers.security import Key
    from protocols.messages import SignedAct

WAIT_S = 20.0
"""Seconds to wait until the log holds the act; long enough for an election."""
AGAIN_S = 0.2
ASK_TIMEOUT_S = 2.0


Why = Annotated[
    str, typer.Option("--why", help="The reason, shown to all nodes, and in `lowcomm audit`.")
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Do it even if no majority of the remaining voters can be reached."
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="An operator's key.  [default: root-key.pem in DIRECTORY or above it]",
    ),
]


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs acts with the key that is here, if there is one."""

    key: "Key | None"
    file: Path | None
    """The file that was given: its key must be of this run. Another one may be of a run that has
    its directory above this node's."""

    @staticmethod
    def of(directory: Path, given: Path | None) -> "Signer":
        """With the key in this file; without one, with the root key in the node's directory or the
        run's. Raises ConfigError if there is no such file, or none that can be read."""
        from lowcomm.startup.join_tokens import OTHER_KEY
        from peers.security import ROOT_KEY, Key

        if given is not None:
            key = Key.load(given, remedy="give another file with --key")
            if key is None:
                raise ConfigError(
                    f"--key {given} does not exist: give the run's {ROOT_KEY}, or an operator's key"
                )
            return Signer(key, given)
        places = (directory / ROOT_KEY, directory.absolute().parent / ROOT_KEY)
        found = (key for place in places if (key := Key.load(place, remedy=OTHER_KEY)) is not None)
        return Signer(next(found, None), None)

    def counts(self, keys: Sequence[str]) -> bool:
        """Is the key of an operator of this run? `keys`: those of the operators, the root key
        first. Raises ConfigError if a key was given, and it is not."""
        counts = self.key is not None and self.key.hex in keys
        if not counts and self.file is not None:
            raise ConfigError(f"--key {self.file} is the key of no operator of this run")
        return counts

    def named(self, keys: Sequence[str]) -> str:
        """The key as the log names it: the root key by ""."""
        assert self.key is not None, "the caller looks"
        return "" if self.key.hex == keys[0] else self.key.hex

    def signature(self, root: str, entry: "SignedAct") -> str:
        """The signature in hex digits."""
        from protocols.acts import act_statement

        assert self.key is not None, "the caller looks"
        return self.key.sign(act_statement(root, entry)).hex()


def undecided(what: str, *, force: bool) -> LowcommError:
    """The error if the run did not decide in time."""
    if force:
        return LowcommError(
            f"the run could not commit {what} within {WAIT_S:g} s, and decides nothing else "
            "before: it takes effect once a majority of the remaining voters is connected. If they "
            "are gone for good, stop the remaining nodes, run `lowcomm recover --force DIRECTORY` "
            "on one of them, then `lowcomm resume DIRECTORY`"
        )
    return LowcommError(
        f"the run could not decide within {WAIT_S:g} s, which needs a majority of its voters: it "
        "will decide once it has one, if this node keeps running"
    )


def running(directory: Path) -> "NodeRecord":
    """The record of a node that runs and answers commands. Raises ConfigError."""
    from lowcomm.startup.identity import read_record, runs

    record = read_record(directory)
    if record is not None and not record.bus and runs(directory, record):
        raise ConfigError(f"{record.name} is starting and answers no command yet: try again later")
    bus = record.bus.removeprefix("ipc://") if record is not None else ""
    if record is None or not (bus and Path(bus).exists()):
        raise _none_runs(directory)
    return record


def ask_any(directory: Path, question: "Question", field: str) -> list[Mapping[str, object]]:
    """This field of the answer of the first daemon that answers, of a run's or a node's directory.
    Raises ConfigError if none does."""
    from lowcomm.startup.identity import node_directories
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


def utc(unix_s: int) -> str:
    """Unix seconds, which another machine has told, for people."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"second {unix_s}"


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


def ask(
    record: "NodeRecord", question: "Question | StopPeer", *, timeout_s: float
) -> dict[str, Any]:
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
        answer = ask(record, question(again), timeout_s=AGAIN_S + min(wait_s, WAIT_S) / 4)
        if "done" in answer:
            return answer
        again = True
        time.sleep(AGAIN_S)
    return None
