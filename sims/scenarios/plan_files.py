"""Fault plans as files, so that the smallest plan that shows a bug can be kept and replayed.

Must NOT draw or play a plan: fault_plan.py does.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from protocols.types import ConfigError
from sims.scenarios.fault_plan import KINDS, PlannedFault


def write_plan(path: Path, plan: Sequence[PlannedFault]) -> None:
    """Write a plan, one fault on each line, so that a person can delete lines."""
    lines = ",\n".join(f" {json.dumps(asdict(fault))}" for fault in plan)
    path.write_text(f"[\n{lines}\n]\n" if plan else "[]\n")


def read_plan(path: Path) -> list[PlannedFault]:
    """Read a plan. Raises ConfigError if the file holds none."""
    try:
        raw = cast(object, json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a plan: {error}") from error
    if not isinstance(raw, list):
        raise ConfigError(f"{path} holds no list of faults")
    return [_fault(path, item) for item in cast(list[object], raw)]


def _fault(path: Path, raw: object) -> PlannedFault:
    match raw:
        case {
            "at_s": int() | float() as at_s,
            "kind": str() as kind,
            "peer": int() as peer,
            "other": int() as other,
            "duration_s": int() | float() as duration_s,
        } if at_s >= 0 and duration_s >= 0 and peer >= 0 and other >= 0:
            for known in KINDS:
                if kind == known:
                    return PlannedFault(float(at_s), known, peer, other, float(duration_s))
        case _:
            pass
    raise ConfigError(f"{path} has an item that is no fault: {json.dumps(raw)[:200]}")
