"""Outcomes of settings: one line of JSON each, in one file.

The file is committed, so that other machines can continue. Must NOT train.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparing.settings import Setting, agrees, digest, recorded
from protocols.types import ConfigError

LOSS_DIGITS = 5
SECONDS_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one setting."""

    loss: float | None
    """Held-out loss in nats per byte at the end; None: the run did not reach the end."""
    error: str
    """The reason why the run did not reach the end; "" if it did."""
    curve: Sequence[tuple[int, float]]
    """(inner steps of the run, held-out loss), from the end of the warm start on."""
    tokens: int
    """Tokens that its nodes trained on after the warm start."""
    waited: Sequence[float]
    """For each node, the share of virtual time that it waited."""
    step_s: float
    """Median CPU seconds of an inner step of one node, in one thread."""
    seconds: float
    corpus: str
    """Digest of the text."""
    machine: dict[str, Any]


def keep(file: Path, setting: Setting, outcome: Outcome) -> None:
    """Append the outcome; several processes may do so at the same time. Raises OSError."""
    rounded = {
        **asdict(outcome),
        "loss": None if outcome.loss is None else round(outcome.loss, LOSS_DIGITS),
        "curve": [[step, round(loss, LOSS_DIGITS)] for step, loss in outcome.curve],
        "waited": [round(share, SECONDS_DIGITS) for share in outcome.waited],
        "step_s": round(outcome.step_s, SECONDS_DIGITS),
        "seconds": round(outcome.seconds, 1),
    }
    record = {"name": name_of(setting), "setting": recorded(setting), "outcome": rounded}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as lines:
        fcntl.flock(lines, fcntl.LOCK_EX)
        if lines.tell() > 0:  # A line that a killed process has not finished is ended here.
            lines.seek(-1, os.SEEK_END)
            if lines.read() != b"\n":
                lines.write(b"\n")
        lines.write(json.dumps(record).encode("ascii") + b"\n")


def kept(file: Path, setting: Setting) -> Outcome | None:
    """The newest outcome in the file; None if there is none, or if a default has changed since.
    Incomplete lines are ignored. Raises ConfigError if the setting's line is no outcome."""
    begin = f'{{"name": "{name_of(setting)}",'.encode("ascii")
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    found = [n for n, line in enumerate(lines) if line.startswith(begin) and line.endswith(b"}")]
    if not found:
        return None
    try:
        record = json.loads(lines[found[-1]])
        if not agrees(record["setting"], setting):
            return None
        outcome: dict[str, Any] = record["outcome"]
        outcome["curve"] = tuple((step, loss) for step, loss in outcome["curve"])
        outcome["waited"] = tuple(outcome["waited"])
        return Outcome(**outcome)
    except (ValueError, KeyError, TypeError) as error:
        where = f"line {found[-1] + 1} of {file}"
        raise ConfigError(f"{where} is no outcome of a setting ({error}): remove it") from error


def name_of(setting: Setting) -> str:
    """The setting's name: describes it, and contains its digest."""
    begins = "warm" if setting.warm_steps else "scratch"
    parts = (setting.method.name, setting.world, begins, f"s{setting.seed}", digest(setting))
    return "-".join(parts)


def check_corpus(outcomes: Sequence[Outcome], corpus: str) -> None:
    """Raise ConfigError if any outcome is of another text than this machine has."""
    for one in outcomes:
        if one.corpus != corpus:
            raise ConfigError(
                f"the kept results are of a text with digest {one.corpus[:8]}, but this Python's "
                f"standard library has {corpus[:8]}: use the Python that made them "
                f"({one.machine['python']}), or set --keep to another file"
            )
