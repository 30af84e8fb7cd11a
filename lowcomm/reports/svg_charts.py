"""Draws charts as SVG text. Pure functions, without a script.

Colours and fonts come from CSS classes that the page defines, so that one chart fits light, dark
and printed pages. All text goes through Markup.format, which escapes it. Must NOT know events or
peers.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from lowcomm.reports.figure_texts import (
    bytes_text,
    count_text,
    decimal_bytes_text,
    factor_text,
    seconds_text,
)

CHAR_PX = 7.8
"""Width of an average bold character of 12 px, to reserve room for a text."""
LABEL_PX = 15
"""Least vertical distance of two labels that do not overlap."""
EARLY_PX = 60
"""If a line ends at least so far before the right edge, its label stands at its own end."""
SAMPLE_PX = 24
"""Length of the piece of a line that is drawn beside its label."""
ROW_PX = 30
SPAN_MIN_PX = 0.8
"""Least width of a span, so that a reduction of milliseconds is visible in a run of minutes."""
SPANS_MAX = 600


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart. `css`: its class. `points`: finite (x, y), ordered by x. If `named` is
    False, the line has no label but a hover title."""

    label: str
    css: str
    points: Sequence[tuple[float, float]]
    named: bool = True


@dataclass(frozen=True, slots=True)
class ChartPhase:
    """A phase of a row, in seconds since the start of the run."""

    begin_s: float
    end_s: float
    css: str
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark at one moment (seconds) in row `row`. `before`: its label stands left of it, if there
    is room."""

    at_s: float
    row: int
    css: str
    label: str
    before: bool = False


@dataclass(frozen=True, slots=True)
class ChartRow:
    label: str
    css: str
    spans: Sequence[ChartPhase]


@dataclass(frozen=True, slots=True)
class BytePair:
    """Two amounts in bytes, which a chart compares by their ratio."""

    label: str
    css: str
    actual: float
    other: float


def line_chart(
    series: Sequence[Series],
    *,
    width: int,
    height: int,
    x_label: str,
    y_label: str,
    samples: bool = False,
    x_text: Callable[[float], str] = count_text,
) -> Markup:
    """Draw lines with their labels at the right end; "" if there are fewer than two points.
    `samples`: every label is at the right edge beside a piece of its line, for many lines with
    different ends. `x_text`: the text of a tick of the x axis."""
    points = [point for line in series for point in line.points]
    if len(points) < 2:
        return Markup("")
    left, top, bottom = 44.0, 26.0, height - 40.0
    named = [line for line in series if line.named and line.points]
    sample_px = SAMPLE_PX if samples else 0
    right = width - 14.0 - _room(width, [line.label for line in named]) - sample_px
    x_max = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    y_ticks = nice_ticks(low, high if high > low else low + 1.0, count=5)
    low, high = min(low, y_ticks[0]), max(high, y_ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * x / x_max, bottom - (bottom - top) * (y - low) / (high - low)

    parts: list[Markup] = []
    for tick in y_ticks:
        y = place(0, tick)[1]
        parts.append(_line("grid", left, y, right, y))
        parts.append(_text("tick end", left - 7, y + 4, f"{tick:g}"))
    for tick in nice_ticks(0, x_max, count=max(2, width // 130)):
        x = place(tick, low)[0]
        parts.append(_line("grid", x, bottom, x, bottom + 4))
        parts.append(_text("tick mid", x, bottom + 18, x_text(tick)))
    parts.append(_text("tick", 4, 12, y_label))
    parts.append(_text("tick end", right, height - 5, x_label))
    for line in series:
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line.points)
        parts.append(
            Markup('<polyline class="line {}" points="{}"><title>{}</title></polyline>').format(
                line.css, path, line.label
            )
        )
    ends = [(line, *place(*line.points[-1])) for line in named]
    early = 0.0 if samples else right - EARLY_PX
    for line, x, y in ends:
        if x < early:  # The line ends early: its label stands there.
            parts.append(_text(f"name {line.css}", x + 5, y - 5, _short(width, line.label)))
    ends = [end for end in ends if end[1] >= early]
    levels = spread([y for _, _, y in ends], gap=LABEL_PX, low=top, high=bottom)
    for (line, _, _), y in zip(ends, levels, strict=True):
        if samples:
            parts.append(_line(f"line {line.css}", right + 4, y, right + SAMPLE_PX, y))
        x = right + 8 + sample_px
        parts.append(_text(f"name {line.css}", x, y + 4, _short(width, line.label)))
    return _svg(width, height, f"{y_label} against {x_label}", parts)


def gantt(
    rows: Sequence[ChartRow],
    *,
    width: int,
    end_s: float,
    ticks: Sequence[tuple[float, str]],
    marks: Sequence[Mark],
) -> Markup:
    """Draw rows of phases over time. `ticks`: (seconds, label) of lines above the rows; `marks`
    stand inside the rows."""
    if not rows or end_s <= 0:
        return Markup("")
    left = 12.0 + _room(width, [row.label for row in rows])
    right, top = width - 12.0, 42.0
    bottom = top + ROW_PX * len(rows)

    def place(t: float) -> float:
        return left + (right - left) * min(max(t / end_s, 0.0), 1.0)

    parts = [_text("tick", 0, 12, "round committed")]
    label_px = CHAR_PX * (1.0 + max((len(label) for _, label in ticks), default=0))
    stride, free = nice_stride(len(ticks), limit=(right - left) / label_px), 0.0
    for number, (at_s, label) in enumerate(ticks):
        x = place(at_s)
        parts.append(_line("commit", x, top - 8, x, bottom))
        if number % stride == 0 and x >= free:
            parts.append(_text("tick mid", x, top - 13, label))
            free = x + CHAR_PX * (len(label) + 1.0)
    for number, row in enumerate(rows):
        y = top + ROW_PX * number
        parts.append(_text(f"name {row.css}", 0, y + 19, _short(width, row.label)))
        parts += _spans(coalesce(row.spans), place, y)
    for tick in nice_ticks(0, end_s, count=max(2, width // 130)):
        parts.append(_line("grid", place(tick), bottom + 2, place(tick), bottom + 6))
        parts.append(_text("tick mid", place(tick), bottom + 20, seconds_text(tick)))
    for mark in marks:
        x, y = place(mark.at_s), top + ROW_PX * mark.row
        wide = 8 + CHAR_PX * len(mark.label)
        before = x - wide > left if mark.before else x + wide > right
        parts.append(_line(f"mark {mark.css}", x, y + 1, x, y + ROW_PX - 3))
        css = f"note {mark.css}" + (" end" if before else "")
        parts.append(_text(css, x + (-6 if before else 6), y + 19, mark.label))
    return _svg(width, bottom + 26, "state of each peer over time", parts)


def ratio_chart(pairs: Sequence[BytePair], *, width: int, actual: str, other: str) -> Markup:
    """Draw for each pair one dot for the actual and one for the other amount, and their ratio, on a
    logarithmic axis of bytes. `actual` and `other`: names of the two amounts."""
    drawn = [pair for pair in pairs if pair.actual > 0 and pair.other > 0]
    if not drawn:
        return Markup("")
    left = 12.0 + _room(width, [pair.label for pair in drawn])
    right, top = width - 16.0, 30.0
    amounts = [amount for pair in drawn for amount in (pair.actual, pair.other)]
    low, high = math.floor(math.log10(min(amounts))), math.ceil(math.log10(max(amounts)))
    high = max(high, low + 1)
    bottom = top + ROW_PX * len(drawn)

    def place(amount: float) -> float:
        return left + (right - left) * (math.log10(amount) - low) / (high - low)

    parts: list[Markup] = []
    for power in range(low, high + 1):
        x = place(10.0**power)
        parts.append(_line("grid", x, top - 4, x, bottom))
        anchor = "end" if power == high else "mid"
        parts.append(_text(f"tick {anchor}", x, bottom + 18, decimal_bytes_text(10**power)))
    for number, pair in enumerate(drawn):
        y = top + ROW_PX * (number + 0.5)
        near, far = sorted((place(pair.actual), place(pair.other)))
        parts.append(_text(f"name {pair.css}", 0, y + 4, _short(width, pair.label)))
        parts.append(_line("span", near, y, far, y))
        parts.append(_dot("other", place(pair.other), y, f"{other}: {bytes_text(pair.other)}"))
        parts.append(_dot(pair.css, place(pair.actual), y, f"{actual}: {bytes_text(pair.actual)}"))
        factor = factor_text(pair.other / pair.actual)
        parts.append(_text("factor mid", (near + far) / 2, y - 5, factor))
    parts.append(_dot("c0", 8, 10, actual) + _text("tick", 18, 14, actual))
    x = 34 + CHAR_PX * len(actual)
    parts.append(_dot("other", x, 10, other) + _text("tick", x + 10, 14, other))
    return _svg(width, bottom + 26, f"{actual} against {other}", parts)


def nice_ticks(low: float, high: float, *, count: int) -> list[float]:
    """Return about `count` multiples of 1, 2 or 5 times a power of ten, in [low, high]."""
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)] or [low]


def nice_stride(count: int, *, limit: float) -> int:
    """Return the smallest stride of 1, 2, 5, 10, 20, ... that selects at most about `limit` of
    `count` items."""
    stride, factors = 1, (2.0, 2.5, 2.0)
    for number in range(3 * len(str(count))):
        if count <= stride * max(limit, 1.0):
            break
        stride = int(stride * factors[number % 3])
    return stride


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Return places of labels that are at least `gap` apart and near their wanted places.

    They are within [low, high]; only if so many do not fit, some are above `high`.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [0.0] * len(wanted)
    floor = low
    for index in order:
        placed[index] = max(wanted[index], floor)
        floor = placed[index] + gap
    ceiling = max(high, low + gap * (len(wanted) - 1))
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed


def thin(points: Sequence[tuple[float, float]], *, limit: int) -> list[tuple[float, float]]:
    """Return at most `limit` points: means of equally many neighbours. At most `limit` points of
    input stay unchanged."""
    size = -(-len(points) // limit) if points else 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


def coalesce(spans: Sequence[ChartPhase]) -> list[ChartPhase]:
    """Return at most SPANS_MAX spans. More spans are replaced by SPANS_MAX slots of equal length,
    each with the phase that takes most of its time."""
    if len(spans) <= SPANS_MAX:
        return list(spans)
    begin = spans[0].begin_s
    slot_s = (spans[-1].end_s - begin) / SPANS_MAX or 1.0
    shares: list[dict[str, float]] = [{} for _ in range(SPANS_MAX)]
    for span in spans:
        first, last = ((t - begin) / slot_s for t in (span.begin_s, span.end_s))
        for slot in range(int(first), min(int(last) + 1, SPANS_MAX)):
            share = min(last, slot + 1.0) - max(first, float(slot))
            shares[slot][span.css] = shares[slot].get(span.css, 0.0) + share
    kept: list[ChartPhase] = []
    for slot, share in enumerate(shares):
        begin_s, css = begin + slot * slot_s, max(share, key=share.__getitem__, default="")
        if kept and css in (kept[-1].css, ""):
            kept[-1] = replace(kept[-1], end_s=begin_s + slot_s)
        else:
            kept.append(ChartPhase(begin_s, begin_s + slot_s, css, f"mostly {css}"))
    return kept


def _spans(spans: Sequence[ChartPhase], place: Callable[[float], float], y: float) -> list[Markup]:
    parts: list[Markup] = []
    for span in spans:
        x = place(span.begin_s)
        wide = max(place(span.end_s) - x, SPAN_MIN_PX)
        parts.append(
            Markup(
                '<rect class="phase {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}">'
                "<title>{}</title></rect>"
            ).format(span.css, x, y + 4, wide, ROW_PX - 9, span.title)
        )
    return parts


def _short(width: float, label: str) -> str:
    """Cut a label to a fifth of the chart's width: names may be of any length."""
    longest = int(width / 5 / CHAR_PX)
    return label if len(label) <= longest else label[: longest - 2] + ".."


def _room(width: float, labels: Sequence[str]) -> float:
    return CHAR_PX * max((len(_short(width, label)) for label in labels), default=0)


def _svg(width: float, height: float, title: str, parts: Iterable[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        f"{width:.0f}", f"{height:.0f}", title, Markup("").join(parts)
    )


def _line(css: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        css, x1, y1, x2, y2
    )


def _text(css: str, x: float, y: float, text: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(css, x, y, text)


def _dot(css: str, x: float, y: float, title: str) -> Markup:
    return Markup(
        '<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="5.5"><title>{}</title></circle>'
    ).format(css, x, y, title)
