"""Outcomes of settings: one small JSON file each.

They are committed, so that other machines can continue. Must NOT train.
"""

import json
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


def keep(directory: Path, setting: Setting, outcome: Outcome) -> None:
    """Write the outcome, completely or not at all. Raises OSError."""
    rounded = {
        **asdict(outcome),
        "loss": None if outcome.loss is None else round(outcome.loss, LOSS_DIGITS),
        "curve": [[step, round(loss, LOSS_DIGITS)] for step, loss in outcome.curve],
        "waited": [round(share, SECONDS_DIGITS) for share in outcome.waited],
        "step_s": round(outcome.step_s, SECONDS_DIGITS),
        "seconds": round(outcome.seconds, 1),
    }
    text = json.dumps({"setting": recorded(setting), "outcome": rounded}, indent=1)
    path = file_of(directory, setting)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(text + "\n", encoding="ascii")
    beside.replace(path)


def kept(directory: Path, setting: Setting) -> Outcome | None:
    """The kept outcome; None if there is none, or if a default has changed since. Raises
    ConfigError if this module did not write the file."""
    path = file_of(directory, setting)
    try:
        told = json.loads(path.read_text(encoding="ascii"))
        if not agrees(told["setting"], setting):
            return None
        found: dict[str, Any] = told["outcome"]
        found["curve"] = tuple((step, loss) for step, loss in found["curve"])
        found["waited"] = tuple(found["waited"])
        return Outcome(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no result of a setting ({error}): remove it") from error


def file_of(directory: Path, setting: Setting) -> Path:
    """Path of the setting's file; its name describes the setting, and contains its digest."""
    begins = "warm" if setting.warm_steps else "scratch"
    parts = (setting.method.name, setting.world, begins, f"s{setting.seed}", digest(setting))
    return directory / f"{'-'.join(parts)}.json"


def check_corpus(outcomes: Sequence[Outcome], corpus: str) -> None:
    """Raise ConfigError if any outcome is of another text than this machine has."""
    for one in outcomes:
        if one.corpus != corpus:
            raise ConfigError(
                f"the kept results are of a text with digest {one.corpus[:8]}, but this Python's "
                f"standard library has {corpus[:8]}: use the Python that made them "
                f"({one.machine['python']}), or set --keep to another folder"
            )
