"""What came of settings: one small JSON file each, to be committed, so that work goes on elsewhere.

Must NOT train.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparing.settings import Setting, agrees, digest, recorded
from protocols.types.errors import ConfigError

LOSS_DIGITS = 5
SECONDS_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one setting."""

    loss: float | None
    """Held out, nats per byte, at the end; None: it did not get there."""
    error: str
    """Why not."""
    curve: Sequence[tuple[int, float]]
    """(inner steps of the run, held-out loss), from the end of the warm start on."""
    tokens: int
    """That its nodes trained on after the warm start."""
    waited: Sequence[float]
    """Of each node: the share of virtual time that it stood still."""
    step_s: float
    """CPU time of an inner step of one node, in one thread, the median."""
    seconds: float
    corpus: str
    """Its digest."""
    machine: dict[str, Any]


def keep(directory: Path, setting: Setting, outcome: Outcome) -> None:
    """Whole or not at all. Raises OSError."""
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
    """None too if a default is another one now than when it was made. Raises ConfigError for a
    file that this module did not write."""
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
    """Its name says what it is, for people, and which setting exactly."""
    begins = "warm" if setting.warm_steps else "scratch"
    parts = (setting.method.name, setting.world, begins, f"s{setting.seed}", digest(setting))
    return directory / f"{'-'.join(parts)}.json"


def check_corpus(outcomes: Sequence[Outcome], corpus: str) -> None:
    """Raise ConfigError if any of them is of another text than this machine has."""
    for one in outcomes:
        if one.corpus != corpus:
            raise ConfigError(
                f"what is kept is of a text with digest {one.corpus[:8]}, and this Python's "
                f"standard library has {corpus[:8]}: use the Python that it was made with "
                f"({one.machine['python']}), or --keep another folder"
            )
