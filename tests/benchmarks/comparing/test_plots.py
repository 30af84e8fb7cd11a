"""Charts of what came to an end."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.comparing.plots import FILES, write_plots
from benchmarks.comparing.rows import ROWS, Point, Row
from benchmarks.comparing.table import Finding
from lowcomm.methods import DiLoCoMethod
from lowcomm.planning.sent_bytes import NodeTraffic
from tests.benchmarks.comparing.tiny import outcome

LINE = "{http://www.w3.org/2000/svg}polyline"


def finding(name: str, loss: float | None) -> Finding:
    point = Point(method=DiLoCoMethod())
    return Finding(
        row=Row(name=name, points=[point]),
        point=point,
        traffic=NodeTraffic(sent=(1,), least=(1,), line=(1,)),
        outcomes=[outcome(loss)],
    )


def test_each_row_that_is_whole_is_a_line_in_both(tmp_path: Path) -> None:
    losses = {"good": 1.0, "better": 0.9, "failed": None}
    tmp_path = tmp_path / "drawn" / "there"  # Not after hours of training an error for that.
    write_plots(tmp_path, {name: finding(name, loss) for name, loss in losses.items()})
    for name in FILES:
        drawn = ET.fromstring((tmp_path / name).read_text())
        assert len(drawn.findall(LINE)) == 2


@pytest.mark.parametrize("rows", [len(ROWS), 50])
def test_no_two_lines_look_alike_however_many_there_are(rows: int, tmp_path: Path) -> None:
    write_plots(tmp_path, {str(number): finding(str(number), 1.0) for number in range(rows)})
    drawn = (tmp_path / FILES[0]).read_text()
    styles = dict(re.findall(r"\.line\.(m\d+)\{([^}]*)\}", drawn))
    css = [line.get("class", "").split()[-1] for line in ET.fromstring(drawn).findall(LINE)]
    assert len({styles[name] for name in css}) == len(css) == rows
