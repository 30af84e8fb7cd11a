"""The plot has a line for each method, and one for the plan's own rate."""

import xml.etree.ElementTree as ET

from lowcomm.planning.forecast import Workload
from lowcomm.planning.line_load import NodeLine
from lowcomm.planning.model_shapes import stated_parameters
from lowcomm.planning.share_chart import share_chart
from lowcomm.planning.variants import compared_variants

LINE = "{http://www.w3.org/2000/svg}polyline"
TEXT = "{http://www.w3.org/2000/svg}text"


def test_lines_rise_with_the_rate() -> None:
    work = Workload(parameters=stated_parameters(100_000, layers=4), nodes=3, step_s=0.1)
    variants = compared_variants(work.parameters)
    drawn = ET.fromstring(share_chart(variants, work, NodeLine(rate_bps=2e7, round_trip_s=0.05)))
    lines = drawn.findall(LINE)
    assert len(lines) == len(variants) + 1
    for line in lines[:-1]:
        heights = [float(point.split(",")[1]) for point in line.get("points", "").split()]
        assert heights == sorted(heights, reverse=True)
        assert heights[0] > heights[-1]
    words = {each.text for each in drawn.findall(TEXT)}
    assert {"10kbit", "10mbit", "10gbit", "sparseloco"} <= words
