"""The keys of `[run]` that may change while the run is under way, with their ranges.

The core reads each of these where it uses it. No other key may change: ranks, arrays and memory
are made for it, or peers that are away would count on its earlier value. Must NOT change a value
(orders.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from protocols.messages.log_entries import Run
from protocols.types.errors import ConfigError
from protocols.types.limits import PEERS_MAX, ROUNDS_MAX
from protocols.types.rules import ProtocolConfig

RULES = "run.protocol."
SECONDS_MAX = 1e6


@dataclass(frozen=True, slots=True)
class SettingRange:
    """One key."""

    kind: type[int] | type[float]
    most: float

    def allows(self, value: object) -> bool:
        return type(value) is self.kind and 0 < value <= self.most


_count, _seconds = SettingRange(int, PEERS_MAX), SettingRange(float, SECONDS_MAX)
SETTINGS: Mapping[str, SettingRange] = {
    "run.outer_steps": SettingRange(int, ROUNDS_MAX - 1),
    "run.peers_min": _count,
    "run.protocol.quorum": _count,
    "run.protocol.reconnect_grace_s": _seconds,
    "run.protocol.reduction_timeout_s": _seconds,
    "run.protocol.round_grace_s": _seconds,
    "run.protocol.transfer_timeout_s": _seconds,
}


def parsed_setting(key: str, text: str) -> str:
    """The value of a setting as the log has it, from what a person typed. Raises ConfigError."""
    known = SETTINGS.get(key)
    if known is None:
        raise ConfigError(
            f"{key} cannot change while the run is under way, since ranks, memory or peers that "
            f"are away count on its value; these can: {', '.join(SETTINGS)}"
        )
    try:
        value: object = known.kind(text)
    except ValueError:
        value = None
    if not known.allows(value):
        what = "a whole number" if known.kind is int else "seconds"
        raise ConfigError(f"{key} takes {what} above 0, at most {known.most:g}, got {text}")
    return json.dumps(value)


def setting_objection(key: str, text: str) -> str:
    """Why the log cannot set this key to this text; "" if it can."""
    try:
        return "" if parsed_setting(key, text) == text else f"{text} is not written as JSON"
    except ConfigError as error:
        return str(error)


def run_with(run: Run, settings: Mapping[str, str]) -> Run:
    """The run with the values that its core reads there. `run_json` stays as it was: schedules of
    ranks follow from it, and have to be the same on old and new nodes."""
    of_run = {"run.outer_steps": "outer_steps", "run.peers_min": "peers_min"}
    changes = {of_run[key]: int(text) for key, text in settings.items() if key in of_run}
    return replace(run, **changes) if changes else run


def rules_with(rules: ProtocolConfig, settings: Mapping[str, str]) -> ProtocolConfig:
    """The rules with the values that were set."""
    changes: dict[str, Any] = {
        key.removeprefix(RULES): SETTINGS[key].kind(text)
        for key, text in settings.items()
        if key.startswith(RULES)
    }
    return replace(rules, **changes) if changes else rules
