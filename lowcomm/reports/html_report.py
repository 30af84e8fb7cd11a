"""Makes one self-contained HTML page about a run: its events, costs and results.

The page is made from the run's files alone, and has no script and no external resource. All text
that a peer or a model wrote is escaped (by jinja's autoescape; the charts escape their own text).
Must NOT import torch. Must NOT compute figures that are missing in summary.json, except to draw
charts.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lowcomm.reports.events import (
    Commit,
    Evaluated,
    Event,
    Metrics,
    RanksLost,
    RanksMoving,
    RanksReady,
    RanksStalled,
    Ready,
    SnapshotReceived,
    View,
    Waiting,
)
from lowcomm.reports.figure_texts import bytes_text, count_text, seconds_text
from lowcomm.reports.process_lifetimes import ProcessLifetime, find_lives, first_commits, run_begin
from lowcomm.reports.summary import Summary, key_figures
from lowcomm.reports.svg_charts import (
    BytePair,
    ChartPhase,
    ChartRow,
    Mark,
    Series,
    gantt,
    line_chart,
    nice_stride,
    ratio_chart,
    thin,
)
from lowcomm.reports.timeline import Timeline, printable, read_timeline
from lowcomm.reports.traffic import sent_over_time, traffic_row
from lowcomm.training.round_schedule import ANCHOR

WIDTHS = {"wide": 1040, "narrow": 460}
"""Widths in pixels. Each chart is drawn twice, since a wide one is unreadable on a phone; CSS shows
one of them."""
COLOURS_MAX = 8
"""In a run with more peers, all peers have one colour; their lines have hover titles."""
POINTS_MAX = 300
TICKS_MAX = 200
DIGEST_CHARS = 12
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))


def write_report(run_dir: Path, summary: Summary) -> Path:
    """Write report.html into a run directory, from its events and its summary. Returns the file's
    path. Raises OSError."""
    path = run_dir / "report.html"
    html = render_report(read_timeline(run_dir), summary)
    path.write_text(html, encoding="utf-8", errors="replace")
    return path


def render_report(timeline: Timeline, summary: Summary) -> str:
    """Return the page as HTML. `summary`: of this timeline."""
    source = (
        resources.files("lowcomm.reports").joinpath("report.html.j2").read_text(encoding="utf-8")
    )
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    begin = summary.started_unix_s
    return environment.from_string(source).render(
        title=printable(str(summary.config.get("name", "run"))),
        began=""
        if begin is None
        else f"{datetime.fromtimestamp(begin, UTC):%Y-%m-%d %H:%M:%S} UTC",
        summary=summary,
        tiles=key_figures(summary),
        charts=_charts(timeline.events, summary),
        peers=_peer_rows(summary),
        traffic=_traffic_rows(summary),
        rounds=_round_rows(summary),
        settings=list(flatten(summary.config)),
        machine=_machine_text(summary.machine),
    )


def peer_css(summary: Summary) -> dict[str, str]:
    """Return {peer id: CSS class of its colour}, for all charts and tables."""
    peers = [peer.peer for peer in summary.peers]
    few = len(peers) <= COLOURS_MAX
    return {peer: f"c{number}" if few else "many" for number, peer in enumerate(peers)}


def flatten(table: Mapping[str, Any], at: str = "") -> list[tuple[str, str]]:
    """Return [("model.layers", "4"), ...], in the order of the table."""
    rows: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            rows += flatten(cast(Mapping[str, Any], value), f"{at}{key}.")
        else:
            rows.append((printable(f"{at}{key}"), printable(str(value))))
    return rows


def phases(lifetime: ProcessLifetime, *, until: float, t0: float) -> list[ChartPhase]:
    """Return the phases of one process as spans without gaps, in seconds since `t0`. `until`: the
    end of the last span, if the process has not ended; `until` and `t0` are unix seconds."""
    spans: list[ChartPhase] = []
    css, why, since, trains = "joining", "starting", lifetime.begin_t, False
    end = until if lifetime.end_t is None else lifetime.end_t
    for event in lifetime.events:
        if isinstance(event, RanksReady | RanksMoving):
            trains = True
        elif isinstance(event, RanksLost | RanksStalled):
            trains = False
        after = _phase_after(event, css, trains=trains)
        if after is None or event.t >= end:
            continue
        if after != (css, why):
            spans.append(_span(css, why, since - t0, event.t - t0))
            (css, why), since = after, event.t
    spans.append(_span(css, why, since - t0, end - t0))
    return spans


def loss_series(events: Sequence[Event], summary: Summary) -> list[Series]:
    """Return lines of training loss against the tokens that the run had committed at that time.

    Between two commits, tokens are interpolated linearly in time. The line "all peers" has a point
    for each round: the mean of the losses that the peers of its roster measured since the round
    before. If the run was evaluated more than once, the line "held-out" has these losses; with a
    method that overlaps rounds, all but the last one are of one node's own parameters.
    """
    commits = [commit for commit in first_commits(events) if commit.fragment == ANCHOR]
    metrics = [e for e in events if isinstance(e, Metrics) and math.isfinite(e.loss)]
    if not commits or not metrics:
        return []
    begin = min([e.t for e in events if isinstance(e, RanksReady)] or [metrics[0].t])
    tokens_at = committed_tokens(commits, begin)
    css = peer_css(summary)
    series: list[Series] = []
    for peer in summary.peers:
        points = [(tokens_at(e.t), e.loss) for e in metrics if e.peer == peer.peer]
        points = thin(points, limit=POINTS_MAX)
        named = len(css) <= COLOURS_MAX
        series.append(Series(peer.name, css[peer.peer], points, named=named))
    run: list[tuple[float, float]] = []
    before = begin
    for commit in commits:
        here = [e for e in metrics if before < e.t <= commit.t and e.peer in commit.roster]
        if here:
            tokens = sum(tokens_at(e.t) for e in here) / len(here)
            run.append((tokens, sum(e.loss for e in here) / len(here)))
            before = commit.t
    held_out = Series("held-out", "evaluated", _evaluations(events, commits))
    return [x for x in (*series, Series("all peers", "run", run), held_out) if x.points]


def _evaluations(events: Sequence[Event], commits: Sequence[Commit]) -> list[tuple[float, float]]:
    """Return (committed tokens, held-out loss) of each evaluation; none if there was only one."""
    totals = accumulate(commit.tokens for commit in commits)
    tokens = dict(zip((commit.round for commit in commits), totals, strict=True))
    tokens.pop(0, None)  # An event of an earlier version does not name its round.
    found = {
        tokens[event.round]: event.loss
        for event in events
        if isinstance(event, Evaluated) and math.isfinite(event.loss) and event.round in tokens
    }
    return sorted(found.items()) if len(found) > 1 else []


def traffic_series(events: Sequence[Event]) -> tuple[list[Series], str]:
    """Return the lines of bytes sent by all peers over time, one for each purpose, and the name of
    the unit of their values."""
    lives = find_lives(events)
    found = sent_over_time(lives, run_begin(lives))
    most = max((size for points in found.values() for _, size in points), default=0)
    name, unit = next(((n, u) for n, u in UNITS if most >= u), UNITS[-1])
    series = [
        Series(purpose, purpose, thin([(t, size / unit) for t, size in points], limit=POINTS_MAX))
        for purpose, points in found.items()
    ]
    return series, name


def committed_tokens(commits: Sequence[Commit], begin: float) -> Callable[[float], float]:
    """Return a function from a time to the tokens committed by then: linear between commits, and 0
    at `begin`. Times are unix seconds."""
    times, totals = [min(begin, commits[0].t)], [0.0]
    for commit in commits:
        times.append(commit.t)
        totals.append(totals[-1] + commit.tokens)

    def tokens_at(t: float) -> float:
        after = bisect_right(times, t)
        if after in (0, len(times)):
            return totals[min(after, len(totals) - 1)]
        share = (t - times[after - 1]) / (times[after] - times[after - 1])
        return totals[after - 1] + share * (totals[after] - totals[after - 1])

    return tokens_at


def _phase_after(event: Event, css: str, *, trains: bool) -> tuple[str, str] | None:
    """Return the (phase, reason) that begins with this event; None if the event begins none."""
    match event:
        case Waiting():
            return "waiting", event.reason
        case SnapshotReceived():
            return "joining", "state received"
        case RanksReady() | RanksMoving():
            return "training", ""
        case RanksStalled():
            return "waiting", event.why
        case RanksLost():
            return "waiting", f"ranks lost: {event.why}"
        case Ready():
            return "reducing", f"round {event.round}"
        case Commit() if trains:
            return "training", ""
        case View() if trains and css == "waiting":
            return "training", ""
        case _:
            return None


def _span(css: str, why: str, begin_s: float, end_s: float) -> ChartPhase:
    title = f"{css} {seconds_text(end_s - begin_s)}" + (f" ({why})" if why else "")
    return ChartPhase(begin_s, end_s, css, title)


def _charts(events: Sequence[Event], summary: Summary) -> dict[str, dict[str, Markup]]:
    """Return {"loss": {"wide": svg, "narrow": svg}, ...}; a chart without data is an empty text."""
    series = loss_series(events, summary)
    rows, marks = _gantt_rows(events, summary)
    commits = [commit for commit in first_commits(events) if commit.fragment == ANCHOR]
    t0 = run_begin(find_lives(events))
    shown = commits[:: nice_stride(len(commits), limit=TICKS_MAX)]
    ticks = [(commit.t - t0, str(commit.round)) for commit in shown]
    css = peer_css(summary)
    pairs = [
        BytePair(
            peer.name,
            css[peer.peer],
            peer.bytes_sent,
            peer.bytes_allreduce_equivalent or 0,
        )
        for peer in summary.peers
    ]
    sent, unit = traffic_series(events)
    charts: dict[str, dict[str, Markup]] = {"loss": {}, "gantt": {}, "bytes": {}, "traffic": {}}
    for name, width in WIDTHS.items():
        height = 340 if name == "wide" else 280
        charts["loss"][name] = line_chart(
            series, width=width, height=height, x_label="tokens committed", y_label="loss"
        )
        charts["traffic"][name] = line_chart(
            sent,
            width=width,
            height=height - 80,
            x_label="seconds",
            y_label=f"{unit} sent by all peers",
        )
        charts["gantt"][name] = gantt(
            rows, width=width, end_s=summary.wall_s or 0.0, ticks=ticks, marks=marks
        )
        charts["bytes"][name] = ratio_chart(
            pairs, width=width, actual="sent", other="all-reduce at every step"
        )
    return charts


def _gantt_rows(events: Sequence[Event], summary: Summary) -> tuple[list[ChartRow], list[Mark]]:
    lives = find_lives(events)
    t0, wall_s = run_begin(lives), summary.wall_s or 0.0
    joined = {(join.peer, join.t_s) for join in summary.joins}
    css = peer_css(summary)
    rows: list[ChartRow] = []
    marks: list[Mark] = []
    for number, peer in enumerate(summary.peers):
        spans: list[ChartPhase] = []
        mine = [lifetime for lifetime in lives if lifetime.peer == peer.peer]
        for lifetime, later in zip(mine, [*mine[1:], None], strict=True):
            begin_s = lifetime.begin_t - t0
            until_s = later.begin_t - t0 if later else wall_s
            spans += phases(lifetime, until=t0 + until_s, t0=t0)
            if (lifetime.peer, begin_s) in joined:
                marks.append(Mark(begin_s, number, "join", "joins", before=True))
            if lifetime.end_t is not None and lifetime.end != "finished":
                end_s = lifetime.end_t - t0
                spans.append(ChartPhase(end_s, until_s, "gone", lifetime.end))
                marks.append(Mark(end_s, number, "kill", lifetime.end))
        rows.append(ChartRow(peer.name, css[peer.peer], spans))
    return rows, marks


def _peer_rows(summary: Summary) -> list[dict[str, Any]]:
    css = peer_css(summary)
    rows: list[dict[str, Any]] = []
    for peer in summary.peers:
        equivalent, sent = peer.bytes_allreduce_equivalent, peer.bytes_sent
        rows.append(
            {
                **asdict(peer),
                "css": css[peer.peer],
                "end": peer.end or "runs",
                "tokens": count_text(peer.tokens),
                "loss": "" if peer.loss is None else f"{peer.loss:.3f}",
                "sent": bytes_text(sent),
                "received": bytes_text(peer.bytes_received),
                "factor": f"{equivalent / sent:.3g}" if equivalent and sent else "",
                "digest": (peer.state_digest or "")[:DIGEST_CHARS],
                "listen_cpu": "" if peer.listen_cpu_s is None else f"{peer.listen_cpu_s:.2f}",
            }
        )
    return rows


def _traffic_rows(summary: Summary) -> list[dict[str, str]]:
    css = peer_css(summary)
    return [
        {**traffic_row(each), "name": each.name, "css": css.get(each.peer, "many")}
        for each in summary.traffic
    ]


def _round_rows(summary: Summary) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    before: dict[int, float] = {}
    for each in summary.rounds:
        since = before.get(each.fragment)
        before[each.fragment] = each.t_s
        rows.append(
            {
                **asdict(each),
                "t": f"{each.t_s:.2f}",
                "took": "" if since is None else f"{each.t_s - since:.2f}",
                "tokens": count_text(each.tokens),
                "roster": ", ".join(each.roster),
            }
        )
    return rows


def _machine_text(machine: Mapping[str, Any]) -> str:
    memory = machine["memory_bytes"]
    size = f", {bytes_text(memory)} of memory" if memory else ""
    return f"{machine['cores']} cores, {machine['cpu']}{size}"
