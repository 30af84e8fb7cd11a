"""The costs in loss are those of the document, figure for figure."""

import re

from lowcomm.planning.loss_costs import LOSS_COSTS
from tests.sources import ROOT

ROW = re.compile(
    r"    (?P<name>\w[\w ]*?) {2,}\d\.\d+\+-\d\.\d+ +"
    r"(?:(?P<above>[+-][\d.]+)%\+-(?P<error>[\d.]+)%|-) "
)


def test_they_are_those_of_the_document() -> None:
    text = (ROOT / "docs/methods-compared.md").read_text("utf-8")
    rows = {
        match["name"]: (float(match["above"] or 0), float(match["error"] or 0))
        for match in map(ROW.match, text.splitlines())
        if match
    }
    assert len(rows) >= len(LOSS_COSTS)
    for name, cost in LOSS_COSTS.items():
        assert (round(100 * cost.above, 2), round(100 * cost.error, 2)) == rows[name], name
