"""Asks the run for an act at a node that runs on this machine, and waits for the log.

Must NOT know what is asked for, nor import anything slow.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocols.types import ConfigError, LowcommError

if TYPE_CHECKING:
    from lowcomm.startup.identity import NodeRecord
    from peers.ipc import Question

WAIT_S = 20.0
"""Seconds to wait until the log holds the act; long enough for an election."""
AGAIN_S = 0.2


def running(directory: Path) -> "NodeRecord":
    """The record of a node that runs. Raises ConfigError."""
    from lowcomm.startup.identity import read_record

    record = read_record(directory)
    if record is None or not Path(record.bus.removeprefix("ipc://")).exists():
        raise ConfigError(
            f"no node runs in {directory}: give the directory of a node that does (runs/NAME/NODE)"
        )
    return record


def ask_run(
    record: "NodeRecord", question: "Callable[[bool], Question]", *, wait_s: float = WAIT_S
) -> dict[str, Any] | None:
    """Ask the node until the log holds the act; returns the answer, or None if that takes too long.
    `question(again)`: the question, or its repetition.

    Raises ConfigError if the run refuses, and LowcommError if the node does not answer.
    """
    from peers.ipc import LinkError, ask_daemon

    deadline, again = time.monotonic() + wait_s, False
    while time.monotonic() < deadline:
        try:
            answer = ask_daemon(record.bus, question(again), timeout_s=AGAIN_S + wait_s / 4)
        except LinkError as error:
            raise LowcommError(f"{record.name} does not answer: {error}") from None
        if answer.get("error"):
            raise ConfigError(str(answer["error"]))
        if "done" in answer:
            return answer
        again = True
        time.sleep(AGAIN_S)
    return None
