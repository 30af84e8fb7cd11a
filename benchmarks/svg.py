"""Writes a chart as a file of its own, for documents. Must NOT draw."""

from markupsafe import Markup

NAMESPACE = "http://www.w3.org/2000/svg"


def svg_file(drawn: Markup, *, style: str) -> str:
    """A chart of `lowcomm.reports.svg_charts` with the colours and fonts that a page would give
    it."""
    first, _, rest = str(drawn).replace("<svg", f'<svg xmlns="{NAMESPACE}"', 1).partition(">")
    return f"{first}><style>{style}</style>{rest}\n"
