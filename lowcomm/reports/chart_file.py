"""Writes a chart as a file of its own: colours of its lines, and the SVG text. Must NOT draw."""

from markupsafe import Markup

NAMESPACE = "http://www.w3.org/2000/svg"
COLOURS = ("#444444", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6a3d9a")
"""Colours that are easily distinguished, also by colour-blind people. Further lines repeat them in
dashes."""
LINE_STYLE = (
    "text{font:12px sans-serif;fill:#777}.end{text-anchor:end}.mid{text-anchor:middle}"
    ".grid{stroke:#bbb}.line{fill:none;stroke-width:1.6}"
)
"""CSS of a chart of lines, without their colours."""


def line_style(number: int) -> str:
    """CSS of the line with the class "m<number>", and of its label: no other number has the same
    colour and dashes."""
    turn, at = divmod(number, len(COLOURS))
    dashes = f";stroke-dasharray:{4 * turn} {2 + turn}" if turn else ""
    colour = COLOURS[at]
    return f".line.m{number}{{stroke:{colour}{dashes}}}text.m{number}{{fill:{colour}}}"


def svg_file(drawn: Markup, *, style: str) -> str:
    """A chart of `lowcomm.reports.svg_charts` with the colours and fonts that a page would give
    it."""
    first, _, rest = str(drawn).replace("<svg", f'<svg xmlns="{NAMESPACE}"', 1).partition(">")
    return f"{first}><style>{style}</style>{rest}\n"
