"""A chart becomes a file that a browser shows by itself."""

import xml.etree.ElementTree as ET

from markupsafe import Markup

from lowcomm.reports.chart_file import NAMESPACE, svg_file


def test_it_has_the_namespace_and_the_style() -> None:
    text = svg_file(Markup('<svg viewBox="0 0 1 1"><text>a</text></svg>'), style="text{fill:red}")
    drawn = ET.fromstring(text)
    assert drawn.tag == f"{{{NAMESPACE}}}svg"
    assert drawn.attrib == {"viewBox": "0 0 1 1"}
    assert [(each.tag.partition("}")[2], each.text) for each in drawn] == [
        ("style", "text{fill:red}"),
        ("text", "a"),
    ]
