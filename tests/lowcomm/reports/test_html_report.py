"""The page: whole, self-contained, true to its figures, and safe whatever peers call themselves."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lowcomm.reports.events import (
    Attempt,
    Commit,
    Diverged,
    Evaluated,
    Event,
    Fault,
    Finished,
    Lost,
    Member,
    Metrics,
    RanksLost,
    RanksReady,
    Ready,
    SnapshotReceived,
    Start,
    Traffic,
    View,
    Waiting,
)
from lowcomm.reports.html_report import (
    committed_tokens,
    flatten,
    loss_series,
    phases,
    render_report,
    traffic_series,
    write_report,
)
from lowcomm.reports.process_lifetimes import find_lives
from lowcomm.reports.summary import summarize
from lowcomm.reports.timeline import Timeline
from lowcomm.reports.traffic import COLUMNS

A, B, C = "alpha.1", "beta.2", "gamma.3"
VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = '</text></title></pre><script>alert("x")</script><img src=http://evil.example/x>'


class Page(HTMLParser):
    """Collects what a page is made of; raises on a tag that does not close the one before."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not (self.open and self.open[-1] == "style"):
            self.text.append(data)

    def says(self, text: str) -> bool:
        return text in " ".join(" ".join(self.text).split())

    def count(self, css: str) -> int:
        return sum(css in (attrs.get("class") or "").split() for _, attrs in self.tags)


def metrics(peer: str, t: float, loss: float) -> Metrics:
    return Metrics(
        t=t,
        peer=peer,
        name=peer[:-2],
        step=1,
        tokens=100,
        loss=loss,
        tokens_per_s=10.0,
        bytes_sent=1000,
        bytes_received=1000,
    )


def rounds(peers: Sequence[str], number: int, t: float) -> list[Event]:
    return [
        event
        for peer in peers
        for event in (
            metrics(peer, t - 1, 5.0 - number),
            Ready(t=t, peer=peer, name="", fragment=0, round=number, steps=10, tokens=1000),
            Commit(
                t=t + 0.5,
                peer=peer,
                name="",
                fragment=0,
                round=number,
                attempt=0,
                roster=tuple(peers),
                tokens=1000 * len(peers),
                counted=True,
                state_digest=f"{number:032x}",
                inner_step=10,
            ),
        )
    ]


def run(*, gamma: str = "gamma", sample: str = "def f():") -> Timeline:
    """Three peers, gamma killed after round 1 and started again; rounds at 10, 20, 30, 40."""
    names = {A: "alpha", B: "beta", C: gamma}
    events: list[Event] = [*rounds((A, B, C), 0, 10.0), *rounds((A, B, C), 1, 20.0)]
    events += [*rounds((A, B), 2, 30.0), *rounds((A, B, C), 3, 40.0)]
    for peer, name in names.items():
        starts = (0.0, 25.0) if peer == C else (0.0,)
        for t in starts:
            events.append(
                Start(t=t + 0.5, peer=peer, name=name, pid=1, exec_t=t, ranks=1, params=1000)
            )
            events.append(Member(t=t + 1.0, peer=peer, name=name, member=peer, member_name=name))
            events.append(RanksReady(t=t + 2.0, peer=peer, name=name, attempt=0))
    events += [
        Fault(t=22.0, peer=C, name=gamma, what="SIGKILL"),
        Lost(t=22.3, peer=A, name="alpha", member=C, member_name=gamma, why="end of stream"),
        Evaluated(t=41.0, peer=A, name="alpha", loss=1.5, windows=64, sample=sample),
        Finished(
            t=42.0,
            peer=A,
            name="alpha",
            outer_steps=4,
            bytes_sent=2000,
            bytes_received=2000,
            state_digest="cd" * 16,
        ),
    ]
    return Timeline(tuple(sorted(events, key=lambda event: event.t)))


def render(timeline: Timeline, *, name: str = "demo") -> tuple[str, Page]:
    config = {"name": name, "outer_steps": 4, "model": {"layers": 2}}
    html = render_report(timeline, summarize(timeline, run=config))
    return html, Page(html)


def test_the_page_is_whole_and_refers_to_nothing_outside() -> None:
    html, page = render(run())
    assert page.open == []
    assert html.isascii()
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag


def test_the_page_shows_the_figures() -> None:
    _, page = render(run())
    for text in (
        *("demo", "1.5000", "over 64 held-out windows", "of 4 planned", "def f():"),
        *("kill to next commit", "model.layers", "Rounds (4)", "injected: SIGKILL"),
        "killed; round 2 committed 0.50 s after its last surviving peer was ready, "
        "8.50 s after the kill",
        "started; a member after 1.00 s; first counted after 15.50 s",
    ):
        assert page.says(text), text
    assert not page.says("not finished")
    assert not page.says("Look at this first")


def test_each_chart_is_drawn_for_wide_and_narrow_pages() -> None:
    _, page = render(run())
    assert [tag for tag, _ in page.tags].count("svg") == 6
    assert page.count("mark") == 2 * 2  # A kill and a join.
    assert page.count("commit") == 2 * 4
    assert page.count("line") == 2 * 4  # Three peers and the run.
    assert page.count("factor") == 2 * 3


def traffic(peer: str, t: float, payload: int) -> Traffic:
    columns: dict[str, tuple[int, ...]] = dict.fromkeys((*COLUMNS, "refused_bytes", "stalls"), (3,))
    return Traffic(
        t=t,
        peer=peer,
        name="",
        peers=(C,),
        **{**columns, "payload_sent_bytes": (payload,)},  # type: ignore[arg-type]
        stalled_s=(0.5,),
        round_trip_s=(0.1,),
        sent_bytes_per_s=0.0,
        received_bytes_per_s=0.0,
        lag_p50_s=0.0,
        lag_p99_s=0.002,
        lag_max_s=0.02,
    )


def test_what_was_sent_is_shown_by_purpose() -> None:
    told = [traffic(A, 11.0, 1 << 20), traffic(B, 12.0, 3 << 20), traffic(A, 41.0, 2 << 20)]
    timeline = Timeline(tuple(sorted((*run().events, *told), key=lambda event: event.t)))
    series, unit = traffic_series(timeline.events)
    assert unit == "MiB"
    assert series[0].points == [(11.0, 1.0), (12.0, 4.0), (41.0, 5.0)]
    _, page = render(timeline)
    assert [tag for tag, _ in page.tags].count("svg") == 8
    assert page.says("Bytes by purpose")
    assert page.says("2.0 MiB 3 B 3 B 3 B 3 B 3 B 3 B 3, 0.5 s 100 ms 2.0 ms 20.0 ms")
    assert not render(run())[1].says("Bytes by purpose")


def test_equal_states_have_a_check_mark_and_others_a_cross() -> None:
    html, page = render(run())
    assert html.count("&#10003;") == 3
    assert page.count("no") == 0
    events = run().events
    changed = tuple(
        replace(event, state_digest="f" * 32)
        if isinstance(event, Commit) and event.peer == B and event.round == 3
        else event
        for event in events
    )
    diverged = Diverged(t=40.6, peer=A, name="alpha", member=B, round=3)
    html, page = render(Timeline((*changed, diverged)))
    assert html.count("&#10003;") == 2
    assert html.count("&#10007;") == 1
    assert page.says("Peers of one round do not hold the same state.")
    assert page.says("Diverged: beta in round 3")


def test_hostile_names_samples_and_settings_stay_text() -> None:
    html, page = render(run(gamma=HOSTILE, sample=HOSTILE), name=HOSTILE)
    assert page.open == []
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert HOSTILE in page.text  # Whole, in the <pre>.
    assert "<script" not in html


def test_lines_that_were_not_read_are_shown() -> None:
    _, page = render(Timeline(run().events, ("beta/events.jsonl:7: not JSON",)))
    assert page.says("beta/events.jsonl:7: not JSON")


def test_a_run_in_which_nothing_happened_has_a_page_too() -> None:
    _, page = render(Timeline(()))
    assert page.open == []
    assert page.says("not finished")
    assert "svg" not in [tag for tag, _ in page.tags]


def test_many_peers_share_a_colour_and_only_the_run_is_named() -> None:
    peers = [f"p{number}.0" for number in range(12)]
    events: list[Event] = [*rounds(peers, 0, 10.0), *rounds(peers, 1, 20.0)]
    timeline = Timeline(tuple(sorted(events, key=lambda event: event.t)))
    series = loss_series(timeline.events, summarize(timeline, run={}))
    assert [line.label for line in series if line.named] == ["all peers"]
    assert {line.css for line in series} == {"many", "run"}


def test_loss_stands_at_the_tokens_that_were_committed_then() -> None:
    timeline = run()
    series = {s.label: s.points for s in loss_series(timeline.events, summarize(timeline, run={}))}
    # Ranks train from 2 s on; round 0 (3000 tokens) is committed at 10.5 s, round 1 at 20.5 s.
    assert series["alpha"][0] == (pytest.approx(3000 * 7 / 8.5), 5.0)
    assert series["alpha"][1] == (pytest.approx(3000 + 3000 * 8.5 / 10), 4.0)
    assert series["gamma"][-1][0] == pytest.approx(8000 + 3000 * 8.5 / 10)
    assert [loss for _, loss in series["all peers"]] == [5.0, 4.0, 3.0, 2.0]


def test_a_loss_that_is_not_finite_is_left_out_of_the_line() -> None:
    timeline = run()
    nan = metrics(A, 12.0, float("nan"))
    events = sorted([*timeline.events, nan], key=lambda event: event.t)
    series = loss_series(events, summarize(timeline, run={}))
    assert len(series[0].points) == 4


def test_tokens_grow_in_proportion_to_time_between_commits() -> None:
    commits = [e for e in run().events if isinstance(e, Commit) and e.peer == A]
    at = committed_tokens(commits, 0.5)
    assert [at(t) for t in (0.0, 0.5, 5.5, 10.5, 15.5, 20.5, 99.0)] == [
        *(0, 0, 1500, 3000, 4500, 6000, 11000)
    ]


def test_phases_follow_each_other_without_a_gap() -> None:
    common = {"peer": A, "name": "alpha"}
    events: list[Event] = [
        Start(t=1.0, pid=1, exec_t=0.0, ranks=1, params=0, **common),
        Waiting(t=2.0, reason="for beta", **common),
        SnapshotReceived(
            t=3.0, donors=(B,), donor_bytes=(1,), seconds=0.1, connected_s=0.2, **common
        ),
        RanksReady(t=4.0, attempt=0, **common),
        Attempt(t=5.0, fragment=0, round=0, attempt=1, roster=(A,), why="", **common),
        *rounds((A,), 0, 6.0),
        RanksLost(t=7.0, attempt=0, why="exit -9", **common),
        *rounds((A,), 1, 7.4)[2:],  # Committed while the ranks are away: they do not train.
        RanksReady(t=8.0, attempt=1, **common),
        Waiting(t=9.0, reason="for a quorum", **common),
        View(t=9.5, view=1, roster=(A,), owners=(A,), first_round=2, **common),
    ]
    (lifetime,) = find_lives(sorted(events, key=lambda event: event.t))
    spans = phases(lifetime, until=10.0, t0=0.0)
    assert [(span.css, span.begin_s, span.end_s) for span in spans] == [
        ("joining", 0.0, 2.0),
        ("waiting", 2.0, 3.0),
        ("joining", 3.0, 4.0),
        ("training", 4.0, 6.0),
        ("reducing", 6.0, 6.5),
        ("training", 6.5, 7.0),
        ("waiting", 7.0, 8.0),
        ("training", 8.0, 9.0),
        ("waiting", 9.0, 9.5),
        ("training", 9.5, 10.0),
    ]
    assert spans[4].title == "reducing 0.5 s (round 0)"


def test_settings_are_flat_and_in_order() -> None:
    assert flatten({"b": {"x": 1, "y": {"z": (1, 2)}}, "a": "t\x1b"}) == [
        ("b.x", "1"),
        ("b.y.z", "(1, 2)"),
        ("a", "t?"),
    ]


def test_the_page_is_written_beside_the_nodes(tmp_path: Path) -> None:
    path = write_report(tmp_path, summarize(Timeline(()), run={"name": "one \udcff"}))
    assert path == tmp_path / "report.html"
    assert "<title>one ? - lowcomm report</title>" in path.read_text("utf-8")


def test_evaluations_on_the_way_are_a_line_at_the_tokens_of_their_rounds() -> None:
    timeline = run()
    one = Evaluated(t=41.0, peer=A, name="alpha", loss=0.0, windows=64, sample="")
    later = [replace(one, t=41.0 + n, round=n, loss=9.0 - n) for n in (1, 3)]
    events = sorted([*timeline.events, *later], key=lambda event: event.t)
    summary = summarize(timeline, run={})
    (line,) = [each for each in loss_series(events, summary) if each.label == "held-out"]
    # Rounds 0 to 3 have 3000, 3000, 2000 and 3000 tokens.
    assert line.points == [(6000, 8.0), (11000, 6.0)]
    assert "held-out" not in {each.label for each in loss_series(timeline.events, summary)}
