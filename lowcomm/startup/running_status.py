"""The status of one running daemon of this machine, asked over its bus.

Must NOT change anything.
"""

import math
from pathlib import Path

from lowcomm.startup.identity import read_record

ASK_TIMEOUT_S = 2.0


def ask(directory: Path, *, timeout_s: float = ASK_TIMEOUT_S) -> dict[str, object] | None:
    """The status of the daemon of a node directory; None if none answers.

    Numbers that are not finite (the loss before the first step) become None, as JSON requires.
    Raises ConfigError if node.json is damaged.
    """
    from peers.ipc import LinkError, Status, ask_daemon

    record = read_record(directory)
    if record is None or not record.bus or not Path(record.bus.removeprefix("ipc://")).exists():
        return None
    try:
        answer = ask_daemon(record.bus, Status(), timeout_s=timeout_s)
    except LinkError:
        return None
    return {key: None if _odd(value) else value for key, value in answer.items()}


def _odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
