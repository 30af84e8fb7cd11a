"""The live view and its plain lines: what they show, in any width, and what they never print."""

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lowcomm.reports.events import (
    Commit,
    Event,
    Fault,
    Finished,
    Listening,
    Lost,
    Member,
    Metrics,
    Ready,
    Start,
    Traffic,
)
from lowcomm.reports.live_view import REPEAT_S, LiveView, print_end
from lowcomm.reports.summary import summarize
from lowcomm.reports.timeline import Timeline
from peers.metrics.counters import PURPOSES

A, B, C = "alpha.1", "beta.2", "gamma.3"
WAYS = ("sent", "received")
NAMES = {A: "alpha", B: "beta", C: "gamma"}


class Pipe(StringIO):
    """Counts what was flushed, as someone at the other end of a pipe would see it."""

    seen = ""

    def flush(self) -> None:
        self.seen = self.getvalue()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[LiveView, Pipe, Clock]:
    pipe, clock = Pipe(), Clock()
    return LiveView(Console(file=pipe, width=40), "demo", clock=clock), pipe, clock


def terminal(width: int, height: int) -> tuple[LiveView, Console, Clock]:
    clock = Clock()
    console = Console(
        file=StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )
    return LiveView(console, "demo", clock=clock), console, clock


def frame(view: LiveView, console: Console) -> list[str]:
    """The lines of the view as they would be drawn now."""
    with console.capture() as capture:
        console.print(view._render())
    return capture.get().splitlines()


def start(peer: str, t: float = 100.0, *, name: str = "") -> Start:
    name = name or NAMES[peer]
    return Start(t=t, peer=peer, name=name, pid=1, exec_t=t, ranks=1, params=0)


def commit(peer: str, t: float, number: int, roster: Sequence[str] = (A, B)) -> Commit:
    return Commit(
        t=t,
        peer=peer,
        name=NAMES[peer],
        fragment=0,
        round=number,
        attempt=0,
        roster=tuple(roster),
        tokens=1,
        counted=True,
        state_digest="ab",
        inner_step=20 * (number + 1),
    )


def lost(by: str, t: float, member: str = C, why: str = "end of stream") -> Lost:
    return Lost(t=t, peer=by, name=NAMES[by], member=member, member_name="", why=why)


def traffic(peer: str) -> Traffic:
    each = dict.fromkeys((f"{what}_{way}_bytes" for what in PURPOSES for way in WAYS), (1,))
    return Traffic(
        t=105.0,
        peer=peer,
        name=NAMES[peer],
        method="diloco",
        peers=(A,),
        **each,
        refused_bytes=(0,),
        stalls=(0,),
        stalled_s=(0.0,),
        round_trip_s=(0.0,),
        sent_bytes_per_s=1024.0,
        received_bytes_per_s=0.0,
        lag_p50_s=0.001,
        lag_p99_s=0.003,
        lag_max_s=0.005,
    )


def status(peer: str, **changed: Any) -> Mapping[str, Any]:
    return {
        "peer": peer,
        "name": NAMES[peer],
        "state": "training",
        "reason": "",
        "inner_steps": 240,
        "tokens_per_s": 4100.0,
        "loss": 1.25,
        "bytes_sent": 5 << 20,
        "bytes_received": 6 << 20,
        "sent_bytes_per_s": 1.5 * 2**20,
        "received_bytes_per_s": 2048.0,
        "lag_p99_s": 0.0021,
        "outer_step": 12,
        "outer_steps": 40,
        "roster": [A, B],
        "members": NAMES,
        "leader": A,
        **changed,
    }


def test_without_a_terminal_each_story_is_a_flushed_line_with_its_time() -> None:
    view, pipe, _ = plain()
    with view:
        listening = Listening(t=100.5, peer=A, name="alpha", address="x:1", listen_cpu_s=0)
        view.update([], [start(A), listening])
        assert pipe.seen == "     0.5  alpha listens on x:1\n"
        view.update([], [commit(A, 112.25, 7, [A])])
        assert pipe.seen.splitlines()[1] == "    12.2  round 7 committed by alpha (step 160)"


def test_what_several_peers_tell_is_told_once() -> None:
    view, pipe, _ = plain()
    view.update([], [start(A), start(B), commit(A, 105, 7), commit(B, 105.1, 7)])
    view.update([], [lost(A, 106), lost(B, 106.2)])
    assert [line[10:] for line in pipe.seen.splitlines()] == [
        "round 7 committed by alpha, beta (step 160)",
        "gamma lost (end of stream)",
    ]
    view.update([], [lost(A, 106 + REPEAT_S)])  # It has come back and is lost again.
    assert len(pipe.seen.splitlines()) == 3


def test_a_line_sums_up_every_ten_seconds() -> None:
    view, pipe, clock = plain()
    view.update([], [start(A), start(B)])
    for number in range(3):
        view.update([], [commit(A, 101.0 + 2 * number, number)])
    told = len(pipe.seen.splitlines())
    clock.now = 109.9
    view.update([status(A), status(B, loss=1.75)], [])
    assert len(pipe.seen.splitlines()) == told
    clock.now = 110.0
    view.update([status(A), status(B, loss=1.75)], [])
    # Rounds take 2 s, 28 are left, and the next one has been under way for 5 s.
    assert pipe.seen.splitlines()[-1] == (
        "    10.0  outer step 12/40 with alpha, beta; 8.2 k tokens/s; loss 1.500; "
        "sent 10.0 MiB (3.0 MiB/s); 51 s left"
    )
    view.update([status(A), status(B)], [])
    assert len(pipe.seen.splitlines()) == told + 1


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [5, 24, 60])
def test_no_line_is_wider_than_the_terminal(width: int, height: int) -> None:
    view, console, clock = terminal(width, height)
    peers = {f"node-{number:02}.{number}": f"node-{number:02}" for number in range(30)}
    events: list[Event] = [
        Start(t=100, peer=p, name=n, pid=1, exec_t=100, ranks=1, params=0) for p, n in peers.items()
    ]
    clock.now = 150.0
    reason = "for " + ", ".join(peers.values())
    statuses = [
        {**status(A), "peer": peer, "name": name, "members": peers, "reason": reason}
        for peer, name in peers.items()
    ]
    view.update(statuses, [*events, commit(A, 110, 0, list(peers)), commit(A, 111, 1, list(peers))])
    lines = frame(view, console)
    assert max(len(line) for line in lines) <= width
    assert len(lines) <= max(height, 14)


def test_a_wide_terminal_shows_what_each_peer_does_and_waits_for() -> None:
    view, console, clock = terminal(110, 24)
    view.update([], [start(A), start(B), start(C), lost(A, 104.0)])
    clock.now = 142.0
    waits = status(B, state="reducing", reason="for alpha (contribution), since 2 s")
    view.update([status(A), waits], [])
    lines = frame(view, console)
    row = {line.split()[0]: line.split() for line in lines if line[:1].strip()}
    assert row["demo"][1:4] == ["outer", "step", "12/40"]
    assert row["demo"][-2:] == ["42", "s"]
    assert " ".join(row["roster:"]) == "roster: alpha, beta; alpha leads"
    assert row["alpha"] == [
        "alpha",
        "training",
        "240",
        "4.1",
        "k",
        "1.250",
        *["5.0", "MiB", "6.0", "MiB"],
    ]
    assert " ".join(row["beta"]).endswith("6.0 MiB for alpha (contribution), since 2 s")
    assert row["gamma"][:2] == ["gamma", "lost"]
    assert row["gamma"][-3:] == ["end", "of", "stream"]
    assert lines[-1] == "    4.0  gamma lost (end of stream)".ljust(len(lines[-1]))


def test_a_very_wide_terminal_shows_rates_and_lag() -> None:
    view, console, _ = terminal(140, 24)
    view.update([status(A), status(C)], [start(A), start(B), start(C), lost(A, 104.0)])
    view.update([], [traffic(B)])
    row = {line.split()[0]: line for line in frame(view, console) if line[:1].strip()}
    assert "1.5 MiB  2.0 KiB    2.1 ms" in row["alpha"]
    assert "1.0 KiB      0 B    3.0 ms" in row["beta"]  # As its events say.
    assert "2.1 ms" not in row["gamma"]


def test_a_terminal_is_drawn_in_place_and_left_with_the_last_frame() -> None:
    view, console, _ = terminal(100, 24)
    with view:
        view.update([status(A)], [start(A)])
        view.update([status(A, loss=0.5)], [])
    drawn = console.file
    assert isinstance(drawn, StringIO)
    assert "1.250" in drawn.getvalue()
    assert drawn.getvalue().rindex("0.500") > drawn.getvalue().rindex("1.250")
    assert drawn.getvalue().endswith("\x1b[?25h")  # The cursor is back.


def state_of(view: LiveView, console: Console, name: str) -> str:
    return next(line.split()[1] for line in frame(view, console) if line.startswith(name))


def test_states_follow_events_when_no_daemon_answers() -> None:
    view, console, _ = terminal(100, 24)
    view.update([], [start(A)])
    assert state_of(view, console, "alpha") == "joining"
    ready = Ready(t=103, peer=A, name="alpha", fragment=0, round=0, steps=1, tokens=1)
    view.update([], [ready])
    assert state_of(view, console, "alpha") == "reducing"
    view.update([], [commit(A, 104, 0)])
    assert state_of(view, console, "alpha") == "training"


def test_a_reason_is_shown_in_training_too_until_the_state_changes() -> None:
    view, console, _ = terminal(100, 24)
    view.update([status(A, reason="the first step")], [start(A)])
    assert frame(view, console)[4].rstrip().endswith("the first step")
    view.update([], [commit(A, 104, 0)])
    assert "the first step" not in "".join(frame(view, console))


def test_a_lost_peer_stays_lost_until_it_is_a_member_again() -> None:
    view, console, _ = terminal(100, 24)
    view.update([status(C)], [start(A), start(C), lost(A, 104)])
    view.update([status(C, reason="for alpha")], [])
    assert state_of(view, console, "gamma") == "lost"
    assert "end of stream" in frame(view, console)[5]
    member = Member(t=106, peer=A, name="alpha", member=C, member_name="gamma")
    view.update([status(C)], [member])
    assert state_of(view, console, "gamma") == "training"


def test_a_finished_peer_is_not_lost_when_it_goes() -> None:
    view, console, _ = terminal(100, 24)
    done = Finished(
        t=103, peer=C, name="gamma", outer_steps=1, bytes_sent=0, bytes_received=0, state_digest=""
    )
    view.update([], [start(C), done, start(A), lost(A, 104)])
    assert state_of(view, console, "gamma") == "finished"


def test_a_fault_is_told_but_its_sayer_is_no_peer() -> None:
    view, console, _ = terminal(100, 24)
    view.update([], [Fault(t=103, peer="", name="launcher", what="SIGKILL gamma")])
    lines = frame(view, console)
    assert lines[-1].strip() == "0.0  fault: SIGKILL gamma"
    assert len(lines) == 6  # Head, roster, gap, titles, gap, story: no row.


def test_missing_and_broken_figures_of_a_status_are_left_out() -> None:
    view, console, _ = terminal(100, 24)
    view.update([{"peer": A}, status(B, loss=None, inner_steps="x", roster=None)], [])
    assert state_of(view, console, "beta") == "training"
    assert "nan" not in "".join(frame(view, console))


def test_hostile_text_is_neither_markup_nor_escape_code() -> None:
    hostile = "[bold]x[/bold]\x1b]0;evil\x07"
    view, pipe, clock = plain()
    view.update([], [start(A, name="[red]a[/red]"), lost(A, 101, why="[blink]")])
    clock.now = 120.0
    view.update([status(A, name=hostile, leader=hostile, roster=[hostile], state=hostile)], [])
    assert "gamma lost ([blink])" in pipe.seen
    assert "[bold]x[/bold]?]0;evil?" in pipe.seen
    other, console, _ = terminal(100, 24)
    other.update([status(A, name=hostile, reason=hostile, state="waiting" + hostile)], [])
    drawn = "\n".join(frame(other, console))
    assert "\x1b" not in drawn + pipe.seen
    assert "\x07" not in drawn + pipe.seen
    assert "[bold]" in drawn


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_end_shows_figures_peers_and_paths(width: int) -> None:
    metrics = Metrics(
        t=104,
        peer=C,
        name="gamma",
        step=1,
        tokens=500,
        loss=2.0,
        tokens_per_s=1.0,
        bytes_sent=2048,
        bytes_received=1,
    )
    killed = Fault(t=104.1, peer=C, name="gamma", what="SIGKILL")
    events = (start(A), start(C), commit(A, 103, 0, [A, C]), commit(C, 103.1, 0, [A, C]))
    summary = summarize(Timeline((*events, metrics, killed, commit(A, 105, 1, [A]))), run={})
    out = StringIO()
    console = Console(file=out, width=width)
    print_end(console, summary, {"report": Path("runs/demo/report.html")})
    text = out.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    rows = [line.split() for line in text.splitlines()]
    assert ["report:", "runs/demo/report.html"] in rows
    assert ["outer", "steps", "2"] in rows
    assert ["kill", "to", "next", "commit", "0.9", "s", "0.9", "s", "after", "the", "kill"] in [
        row[:11] for row in rows
    ]
    (gamma,) = (row for row in rows if row[:1] == ["gamma"])
    assert gamma[:2] == ["gamma", "killed"]
    assert gamma[-4:] == ["2.0", "KiB", "ab", "="]
    assert ("500" in gamma) is (width >= 72)
