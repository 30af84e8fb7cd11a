"""The plot of a plan: the share of the time in which a node computes, by the rate of its line.

Must NOT estimate: the forecast gives each point.
"""

import math
from collections.abc import Sequence

from lowcomm.planning.forecast import Workload
from lowcomm.planning.line_load import NodeLine, load_of
from lowcomm.planning.model_shapes import layout_of
from lowcomm.planning.variants import Variant
from lowcomm.quantities import RATE, show
from lowcomm.reports import LINE_STYLE, Series, line_chart, line_style, svg_file

WIDTH, HEIGHT = 860, 460
POINTS_PER_DECADE = 12
DECADES = 6
"""Powers of ten of rates on the axis; the plan's own rate is in the middle."""


def share_chart(variants: Sequence[Variant], work: Workload, line: NodeLine) -> str:
    """The chart as the text of an SVG file."""
    first = round(math.log10(line.rate_bps)) - DECADES // 2
    places = [number / POINTS_PER_DECADE for number in range(DECADES * POINTS_PER_DECADE + 1)]
    series: list[Series] = []
    for number, variant in enumerate(variants):
        layout = layout_of(work.parameters, variant.method)
        load = load_of(variant.method, layout, nodes=work.nodes)
        points: list[tuple[float, float]] = []
        for place in places:
            here = NodeLine(rate_bps=10 ** (first + place), round_trip_s=line.round_trip_s)
            points.append((place, 100 * load.share_on(here, step_s=work.step_s)))
        series.append(Series(variant.name, f"m{number}", points))
    at = math.log10(line.rate_bps) - first
    own = Series(f"this line, {show(line.rate_bps, RATE)}", "own", [(at, 0.0), (at, 100.0)], False)
    drawn = line_chart(
        [*series, own],
        width=WIDTH,
        height=HEIGHT,
        x_label="rate of each node's line",
        y_label="% of the time in which a node computes",
        samples=True,
        x_text=lambda place: show(10 ** (first + place), RATE),
    )
    lines = "".join(line_style(number) for number in range(len(series)))
    return svg_file(drawn, style=f"{LINE_STYLE}.line.own{{stroke:#999}}{lines}")
