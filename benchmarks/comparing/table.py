"""Results of the comparison: figures of each row, verdicts on the bars, and both as markdown.

Seconds are computed, not measured: from the steps to a loss, the fastest inner step of all runs
with such steps, and the bytes that lowcomm/planning counts on a line of a rate. Must NOT train, nor
omit a failure.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from benchmarks.comparing.kept import Outcome
from benchmarks.comparing.rows import BASELINE, Bar, Point, Row, base_of
from benchmarks.comparing.settings import said
from lowcomm.methods import FlexDeMoMethod
from lowcomm.planning import NodeTraffic
from lowcomm.reports import decimal_bytes_text, seconds_text

TARGET_ABOVE = 0.05
"""The time is given to a loss that exceeds all-reduce's final loss by this share."""
RATES_BPS = {"10 Mbit/s": 1e7, "100 Mbit/s": 1e8, "1 Gbit/s": 1e9}
NOTHING = "-"
EVERYBODYS = ("name", "inner_steps")
"""Keys of methods that the table need not repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The results of one row."""

    row: Row
    point: Point
    traffic: NodeTraffic
    outcomes: Sequence[Outcome | None]
    """Outcomes by seed, in the same order in all findings; None: not trained yet."""

    @property
    def whole(self) -> bool:
        """Whether the runs of all seeds were completed."""
        return all(one is not None and one.loss is not None for one in self.outcomes)

    @property
    def losses(self) -> list[float]:
        return [one.loss for one in self.outcomes if one is not None and one.loss is not None]

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The mean loss over all seeds, by inner steps of the run."""
        curves = [one.curve for one in self.outcomes if one is not None and one.loss is not None]
        return [
            (points[0][0], statistics.fmean(loss for _, loss in points))
            for points in zip(*curves, strict=True)
        ]

    @property
    def waited(self) -> float:
        """The share of time that the node waited that waited most."""
        return max((max(one.waited) for one in self.outcomes if one is not None), default=0.0)


def spread(values: Sequence[float]) -> float:
    """The sample's standard deviation; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def above(one: Finding, other: Finding) -> tuple[float, float]:
    """By which share the loss of `one` exceeds that of `other`, seed by seed: (mean, standard
    error). Both must be whole."""
    shares = [a / b - 1 for a, b in zip(one.losses, other.losses, strict=True)]
    return statistics.fmean(shares), spread(shares) / math.sqrt(len(shares))


def judged(bar: Bar, findings: Mapping[str, Finding]) -> dict[str, Any]:
    """The verdict on a bar; it is not met if a run is missing or failed."""
    row = {**asdict(bar), "measured": NOTHING, "met": False}
    one, other = findings.get(bar.row), findings.get(bar.against)
    if one is None or other is None or not one.whole or not other.whole:
        return row
    mean, error = above(one, other)
    met, words = mean <= bar.within + error, [f"{mean:+.2%}, standard error {error:.2%}"]
    if bar.waits_most < 1:
        words.append(f"waits {one.waited:.1%}")
        met = met and one.waited <= bar.waits_most
    if bar.fewer_bytes:
        factor = other.traffic.least_bytes / one.traffic.least_bytes
        as_sent = other.traffic.sent_bytes / one.traffic.sent_bytes
        words.append(f"{factor:.0f} times fewer bytes, {as_sent:.0f} times as sent")
        met = met and factor >= bar.fewer_bytes
    return {**row, "measured": ", ".join(words), "met": met}


def steps_to(curve: Sequence[tuple[int, float]], loss: float) -> float | None:
    """Inner steps from the curve's begin until it first reaches this loss, interpolated linearly;
    None if it never does."""
    for (step, before), (later, after) in pairwise(curve):
        if after <= loss:
            part = (before - loss) / (before - after) if before > loss else 0.0
            return step + part * (later - step) - curve[0][0]
    return None


def step_seconds(findings: Mapping[str, Finding]) -> dict[str, float]:
    """By row, CPU seconds of an inner step: the fastest of all runs with the same work in a step,
    since other processes disturbed it least; 0 if there are none."""
    found: dict[tuple[str, ...], float] = {}
    for one in findings.values():
        made = [each.step_s for each in one.outcomes if each is not None]
        work = _work(one.point)
        found[work] = min([*made, found.get(work, math.inf)])
    least = {name: found[_work(one.point)] for name, one in findings.items()}
    return {name: step_s if math.isfinite(step_s) else 0.0 for name, step_s in least.items()}


def rows(findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """The rows of the table as data, for people and programs."""
    baseline = findings.get(BASELINE)
    base = baseline if baseline is not None and baseline.whole else None
    target = statistics.fmean(base.losses) * (1 + TARGET_ABOVE) if base else None
    step_s = step_seconds(findings)
    return [_row(one, base, target, step_s[name]) for name, one in findings.items()]


def _row(one: Finding, base: Finding | None, target: float | None, step_s: float) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": one.row.name,
        "chosen": words(one.point, base_of(one.row).points),
        "seeds": len(one.outcomes),
        "errors": [each.error for each in one.outcomes if each is not None and each.error],
        "round_bytes": one.traffic.sent_bytes,
        "round_least_bytes": one.traffic.least_bytes,
        "window_bytes": one.traffic.window_bytes,
        "waited": one.waited,
        "step_s": step_s,
        "loss": None,
    }
    if not one.whole:
        return told
    steps = one.curve[-1][0] - one.curve[0][0]
    told["loss"], told["loss_spread"] = statistics.fmean(one.losses), spread(one.losses)
    told["sent_bytes"], told["least_bytes"] = one.traffic.bytes_of(steps)
    told["tokens"] = [each.tokens for each in one.outcomes if each is not None]
    if base is not None and one is not base:
        told["above"], told["above_error"] = above(one, base)
    needed = None if target is None else steps_to(one.curve, target)
    told["seconds"] = {
        rate: needed
        if needed is None
        else needed * one.traffic.step_seconds(step_s=step_s, rate_bps=bps)
        for rate, bps in RATES_BPS.items()
    }
    return told


def words(point: Point, among: Sequence[Point]) -> str:
    """The point's values of keys that differ from their default in any of the points, and its
    learning rate."""
    keys = [key for each in (*among, point) for key in said(each.method)]
    told = [
        f"{key} {getattr(point.method, key)}"
        for key in dict.fromkeys(keys)
        if key not in EVERYBODYS and hasattr(point.method, key)
    ]
    return ", ".join([*told, f"lr {point.lr:g}"])


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """The table as markdown."""
    rates = list(RATES_BPS)
    lines = [
        "| method | chosen | held-out loss | to all-reduce | sent | at least | in one step | "
        + " | ".join(rates)
        + " |",
        "|" + "---|" * (7 + len(rates)),
    ]
    for one in found:
        if one["loss"] is None:
            why = "; ".join(one["errors"]) or "not trained yet"
            cells = [why, *[NOTHING] * (4 + len(rates))]
        else:
            share = one.get("above")
            cells = [
                _with_error(f"{one['loss']:.4f}", f"{one['loss_spread']:.4f}", one["seeds"]),
                NOTHING
                if share is None
                else _with_error(f"{share:+.2%}", f"{one['above_error']:.2%}", one["seeds"]),
                decimal_bytes_text(one["sent_bytes"]),
                decimal_bytes_text(one["least_bytes"]),
                decimal_bytes_text(one["window_bytes"]),
                *[_seconds(one["seconds"][rate]) for rate in rates],
            ]
        lines.append(f"| {one['name']} | {one['chosen']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bars_markdown(found: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| asked | measured | met |", "|---|---|---|"]
    for one in found:
        asked = f"{one['row']}: within {one['within']:+.0%} of {one['against']}"
        if one["waits_most"] < 1:
            asked += f", no node waits more than {one['waits_most']:.0%}"
        if one["fewer_bytes"]:
            asked += f", {one['fewer_bytes']:g} times fewer bytes"
        lines.append(f"| {asked} | {one['measured']} | {'yes' if one['met'] else '**no**'} |")
    return "\n".join(lines)


def grid(points: Sequence[tuple[Row, Point, Outcome | None]]) -> list[dict[str, Any]]:
    """All points that were tried, with the failed ones."""
    return [
        {
            "name": row.name,
            "point": words(point, row.points),
            "loss": None if outcome is None else outcome.loss,
            "error": "not trained yet" if outcome is None else outcome.error,
        }
        for row, point, outcome in points
    ]


def grid_markdown(points: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| method | point | held-out loss |", "|---|---|---|"]
    for one in points:
        loss = one["error"] if one["loss"] is None else f"{one['loss']:.4f}"
        lines.append(f"| {one['name']} | {one['point']} | {loss} |")
    return "\n".join(lines)


def chosen(row: Row, outcomes: Sequence[Outcome | None]) -> Point | None:
    """The point with the lowest loss, the first of equals; None while any is not trained yet."""
    if any(one is None for one in outcomes):
        return None
    losses = [math.inf if one is None or one.loss is None else one.loss for one in outcomes]
    return row.points[losses.index(min(losses))]


def _work(point: Point) -> tuple[str, ...]:
    """A key for the work of an inner step beyond the gradient."""
    method = point.method
    return (method.replicator,) if isinstance(method, FlexDeMoMethod) else (point.optimizer.name,)


def _with_error(value: str, error: str, seeds: int) -> str:
    """The value with its error; without it for a single seed, which shows no spread."""
    return value if seeds == 1 else f"{value} +- {error}"


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else seconds_text(seconds)
