"""Event log, timeline, summary, live view and HTML report.

In: events.jsonl, which each daemon writes. Out: texts, tables and charts made from it. Must NOT
change a run, and must not ask a daemon for anything that is not in its event log.

Start reading: events.py, then timeline.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.reports.chart_file import LINE_STYLE, line_style, svg_file
    from lowcomm.reports.event_log import EVENTS
    from lowcomm.reports.events import (
        Commit,
        Elected,
        Event,
        Finished,
        Layout,
        Lost,
        RanksLost,
        RanksStalled,
        Ready,
    )
    from lowcomm.reports.figure_texts import decimal_bytes_text, seconds_text
    from lowcomm.reports.html_report import write_report
    from lowcomm.reports.live_view import LiveView, print_end
    from lowcomm.reports.summary import Summary, build_summary, write_summary
    from lowcomm.reports.svg_charts import Series, line_chart
    from lowcomm.reports.timeline import Follower, read_timeline

__all__ = [
    "EVENTS",
    "LINE_STYLE",
    "Commit",
    "Elected",
    "Event",
    "Finished",
    "Follower",
    "Layout",
    "LiveView",
    "Lost",
    "RanksLost",
    "RanksStalled",
    "Ready",
    "Series",
    "Summary",
    "build_summary",
    "decimal_bytes_text",
    "line_chart",
    "line_style",
    "print_end",
    "read_timeline",
    "seconds_text",
    "svg_file",
    "write_report",
    "write_summary",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "chart_file": "LINE_STYLE line_style svg_file",
        "event_log": "EVENTS",
        "events": "Commit Elected Event Finished Layout Lost RanksLost RanksStalled Ready",
        "html_report": "write_report",
        "live_view": "LiveView print_end",
        "summary": "Summary build_summary write_summary",
        "figure_texts": "decimal_bytes_text seconds_text",
        "svg_charts": "Series line_chart",
        "timeline": "Follower read_timeline",
    },
)
