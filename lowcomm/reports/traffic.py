"""Computes a run's traffic by purpose, its stalls and the lags of its daemons from its events.

Pure functions. The counters of a peer start at 0 in each of its processes, and are added up here.
Must NOT read files or import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lowcomm.reports.events import Traffic
from lowcomm.reports.figure_texts import bytes_text, milliseconds_text, seconds_text
from lowcomm.reports.process_lifetimes import ProcessLifetime
from peers.metrics import PURPOSES, Purpose

DIRECTIONS = ("sent", "received")
COLUMNS = tuple(f"{purpose}_{way}_bytes" for purpose in PURPOSES for way in DIRECTIONS)
"""Names of byte counters that Traffic events and TrafficFigures have in common."""
STALLED_MIN_S = 1.0
"""Stalls are reported if all together were at least so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFigures:
    """Traffic of one peer id with all other peers, over all its processes."""

    peer: str
    name: str
    payload_sent_bytes: int
    payload_received_bytes: int
    transfer_sent_bytes: int
    transfer_received_bytes: int
    control_sent_bytes: int
    control_received_bytes: int
    relay_sent_bytes: int
    relay_received_bytes: int
    refused_bytes: int
    stalls: int
    stalled_s: float
    round_trip_s: float | None  # To the farthest peer, as last measured.
    lag_p99_s: float | None  # Of its event loop, in its worst minute.
    lag_max_s: float | None


def traffic_figures(
    lives: Sequence[ProcessLifetime], names: Mapping[str, str]
) -> list[TrafficFigures]:
    """Return the figures of each peer with Traffic events, in the order of `lives`."""
    told: dict[str, list[list[Traffic]]] = {}
    for lifetime in lives:
        own = [event for event in lifetime.events if isinstance(event, Traffic)]
        if own:
            told.setdefault(lifetime.peer, []).append(own)
    return [_figures(peer, names.get(peer, peer), spans) for peer, spans in told.items()]


def sent_over_time(
    lives: Sequence[ProcessLifetime], t0: float
) -> dict[Purpose, list[tuple[float, int]]]:
    """Return points (seconds since `t0`, bytes sent by all peers until then), by purpose. `t0`:
    unix seconds."""
    told = [
        (event.t, number, event)
        for number, lifetime in enumerate(lives)
        for event in lifetime.events
        if isinstance(event, Traffic)
    ]
    newest: dict[int, Traffic] = {}
    found: dict[Purpose, list[tuple[float, int]]] = {purpose: [] for purpose in PURPOSES}
    for t, number, event in sorted(told, key=lambda each: each[:2]):
        newest[number] = event
        for purpose, points in found.items():
            points.append(
                (t - t0, sum(_sum(each, f"{purpose}_sent_bytes") for each in newest.values()))
            )
    return found


def traffic_text(figures: Sequence[TrafficFigures]) -> tuple[str, str]:
    """Return the shares of all bytes sent, and a note, as ("97 % payload", "2 % transfer, 1 %
    control; loop lag p99 2.1 ms in the worst minute"); ("", "") if no bytes were reported."""
    names = {purpose: f"{purpose}_sent_bytes" for purpose in PURPOSES}
    sent = {of: sum(int(getattr(x, name)) for x in figures) for of, name in names.items()}
    total = sum(sent.values())
    if not total:
        return "", ""
    payload, *others = (
        f"{100 * size / total:.3g} % {purpose}"
        for purpose, size in sent.items()
        if size or purpose != "relay"  # Few runs need relays.
    )
    parts = [", ".join(others)]
    stalled_s = sum(each.stalled_s for each in figures)
    if stalled_s >= STALLED_MIN_S:
        parts.append(f"{seconds_text(stalled_s)} stalled")
    lags = [each.lag_p99_s for each in figures if each.lag_p99_s is not None]
    if lags:
        parts.append(f"loop lag p99 {milliseconds_text(max(lags))} in the worst minute")
    return payload, "; ".join(parts)


def traffic_row(figures: TrafficFigures) -> dict[str, str]:
    """Format a peer's TrafficFigures for people, under the same keys."""
    row = {key: bytes_text(getattr(figures, key)) for key in (*COLUMNS, "refused_bytes")}
    for key in ("round_trip_s", "lag_p99_s", "lag_max_s"):
        seconds = getattr(figures, key)
        row[key] = "" if seconds is None else milliseconds_text(seconds)
    stalls = figures.stalls
    row["stalls"] = f"{stalls}, {seconds_text(figures.stalled_s)}" if stalls else "none"
    return row


def _figures(peer: str, name: str, lives: Sequence[Sequence[Traffic]]) -> TrafficFigures:
    last = [own[-1] for own in lives]
    events = [event for own in lives for event in own]
    # At the end a peer may have no connections left.
    trips = next((max(e.round_trip_s) for e in reversed(events) if any(e.round_trip_s)), None)
    sums: dict[str, Any] = {
        key: sum(_sum(event, key) for event in last)
        for key in (*COLUMNS, "refused_bytes", "stalls")
    }
    return TrafficFigures(
        peer=peer,
        name=name,
        **sums,
        stalled_s=sum(sum(event.stalled_s) for event in last),
        round_trip_s=trips,
        lag_p99_s=max((event.lag_p99_s for event in events), default=None),
        lag_max_s=max((event.lag_max_s for event in events), default=None),
    )


def _sum(event: Traffic, key: str) -> int:
    return sum(cast(tuple[int, ...], getattr(event, key)))
