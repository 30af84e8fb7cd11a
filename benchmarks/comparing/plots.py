"""The comparison as two charts: the loss by steps, and by seconds on a line. Must NOT judge."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.comparing.table import RATES_BPS, Finding, step_seconds
from lowcomm.reports import LINE_STYLE, Series, line_chart, line_style, svg_file

WIDTH, HEIGHT = 760, 380
RATE = "100 Mbit/s"
FILES = ("methods-steps.svg", "methods-seconds.svg")


def write_plots(directory: Path, findings: Mapping[str, Finding]) -> None:
    """Draw the completed rows into `directory`, which is created if it is missing. Raises
    OSError."""
    step_s, begin = step_seconds(findings), "after the common warm start"
    steps = chart(findings, lambda _: 1.0, x_label=f"inner steps {begin}")
    seconds = chart(
        findings,
        lambda one: one.traffic.step_seconds(step_s=step_s[one.row.name], rate_bps=RATES_BPS[RATE]),
        x_label=f"seconds {begin}, {RATE} (computed)",
    )
    directory.mkdir(parents=True, exist_ok=True)
    for name, drawn in zip(FILES, (steps, seconds), strict=True):
        (directory / name).write_text(drawn, encoding="ascii")


def chart(
    findings: Mapping[str, Finding], scale: Callable[[Finding], float], *, x_label: str
) -> str:
    """One chart; `scale`: the length of one inner step on the x axis."""
    series = [
        Series(
            one.row.name,
            f"m{number}",
            [((step - one.curve[0][0]) * scale(one), loss) for step, loss in one.curve],
        )
        for number, one in enumerate(findings.values())
        if one.whole
    ]
    drawn = line_chart(
        series,
        width=WIDTH,
        height=HEIGHT,
        x_label=x_label,
        y_label="held-out loss, nats per byte",
        samples=True,
    )
    lines = "".join(line_style(number) for number in range(len(findings)))
    return svg_file(drawn, style=LINE_STYLE + lines)
