"""The files of a run that went exactly as its clock says."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lowcomm.config.schema import DataConfig, FileConfig, RunConfig
from lowcomm.methods import AnyMethod
from lowcomm.reports.event_log import EVENTS
from lowcomm.startup.identity import RECORD, NodeRecord

NAMES = ("a", "b")
IDS = tuple(f"{name}.1" for name in NAMES)
STEPS = 10
EXCHANGE_S = 2.0
TRIP_S = 0.1


def write_run(
    directory: Path,
    method: AnyMethod,
    *,
    params: int,
    step_s: float,
    rounds: int,
    pause_s: float = 0.0,
    data: DataConfig | None = None,
    command: tuple[str, ...] = (),
) -> Path:
    """A run of two nodes: `b` needs twice the time for a step, an exchange takes EXCHANGE_S.
    `pause_s`: after round 3 the run stands. `command`: the program that both run."""
    run = RunConfig(method=method, data=data or DataConfig())
    for number, name in enumerate(NAMES):
        node = directory / name
        node.mkdir(parents=True)
        config = FileConfig(run=run if not number else None)
        record = NodeRecord(
            peer=IDS[number],
            name=name,
            incarnation=1,
            config=json.dumps(asdict(config)),
            command=command,
        )
        (node / RECORD).write_text(json.dumps(asdict(record)), encoding="utf-8")
        lines = [
            json.dumps({"peer": IDS[number], "name": name, **event})
            for event in _events(
                number, params=params, step_s=step_s, rounds=rounds, pause_s=pause_s
            )
        ]
        (node / EVENTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def _events(
    number: int, *, params: int, step_s: float, rounds: int, pause_s: float
) -> list[dict[str, Any]]:
    own_s, slow_s = STEPS * step_s * (number + 1), STEPS * step_s * len(NAMES)
    none = (0,) * len(NAMES)
    columns = [
        f"{of}_{way}_bytes"
        for of in ("payload", "transfer", "control", "relay")
        for way in ("sent", "received")
    ]
    zeros = dict.fromkeys((*columns, "refused_bytes", "stalls", "stalled_s"), none)
    rates = ("sent_bytes_per_s", "received_bytes_per_s", "lag_p50_s", "lag_p99_s", "lag_max_s")
    found: list[dict[str, Any]] = [
        {"t": 0.0, "kind": "layout", "params": params},
        {
            "t": 0.5,
            "kind": "traffic",
            "peers": IDS,
            "round_trip_s": (0.0, TRIP_S),
            **zeros,
            **dict.fromkeys(rates, 0.0),
        },
    ]
    for round_ in range(1, rounds + 1):
        begin = (slow_s + EXCHANGE_S) * (round_ - 1) + (pause_s if round_ > 3 else 0.0)
        end = begin + slow_s + EXCHANGE_S
        at = {"fragment": 0, "round": round_}
        found += [
            {"t": begin + own_s, "kind": "ready", **at, "steps": STEPS, "tokens": 1},
            {"t": end, "kind": "reduced", **at, "seconds": end - begin - own_s},
            {
                "t": end,
                "kind": "commit",
                **at,
                "attempt": 0,
                "roster": IDS,
                "tokens": 2,
                "counted": True,
                "state_digest": "",
                "inner_step": STEPS * round_,
            },
        ]
    return found
