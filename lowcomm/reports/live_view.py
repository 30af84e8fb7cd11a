"""The live view of a run on a terminal, its plain lines elsewhere, and its figures at the end.

The caller passes in the daemons' statuses and new events. Must NOT ask daemons, read files or
import torch. Must NOT interpret text of daemons as markup or escape codes.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lowcomm.reports.events import (
    Commit,
    Event,
    Fault,
    Finished,
    Left,
    Lost,
    Member,
    Metrics,
    Note,
    RanksReady,
    Ready,
    Start,
    Stopped,
    Traffic,
    Waiting,
)
from lowcomm.reports.figure_texts import bytes_text, count_text, milliseconds_text, seconds_text
from lowcomm.reports.summary import Summary, key_figures
from lowcomm.reports.timeline import peer_names, printable, roster_text, story
from lowcomm.training.round_schedule import ANCHOR

STORIES_SHOWN = 8
STORIES_MIN = 3
"""Lines of events that a terminal shows even if it has few rows."""
REPEAT_S = 30.0
"""Several peers report the same event. Within so many seconds, equal texts are shown once."""
TOLD_MAX = 256
SUMMARY_EVERY_S = 10.0
ETA_ROUNDS = 20
"""The remaining time is estimated from the durations of so many last rounds."""
FULL_COLUMNS, WIDE_COLUMNS, MEDIUM_COLUMNS = 120, 92, 56
STATE_OF: Mapping[type[Event], str] = {
    Start: "joining",
    Waiting: "waiting",
    RanksReady: "training",
    Ready: "reducing",
    Commit: "training",
    Finished: "finished",
    Stopped: "stopped",
}
"""The state of a peer after an event of it, until a status of its daemon overrides it."""
STYLES: Mapping[str, str] = {
    "training": "green",
    "reducing": "yellow",
    "joining": "magenta",
    "waiting": "cyan",
    "finished": "bold green",
    "lost": "bold red",
    "left": "red",
    "stopped": "red",
}


@dataclass(slots=True)
class _Peer:
    """The latest figures of one peer. Until they are known, numbers are 0 and the loss is NaN."""

    state: str = "joining"
    reason: str = ""
    gone: str = ""
    steps: int = 0
    tokens_per_s: float = 0.0
    loss: float = math.nan
    bytes_sent: int = 0
    bytes_received: int = 0
    sent_per_s: float = 0.0
    received_per_s: float = 0.0
    lag_s: float = 0.0


@dataclass(slots=True)
class _Progress:
    """How far the run is, from commits and statuses."""

    outer_step: int = 0
    outer_steps: int = 0
    """Outer steps of the whole run; 0 until they are known."""
    roster: tuple[str, ...] = ()
    leader: str = ""
    last_round: int = -1
    commits: deque[float] = field(default_factory=lambda: deque[float](maxlen=ETA_ROUNDS))
    """Times of the last commits."""

    def take_commit(self, commit: Commit) -> None:
        """Count a commit of the anchor, which several peers report."""
        if commit.round > self.last_round:
            self.last_round, self.roster = commit.round, commit.roster
            self.outer_step += 1
            self.commits.append(commit.t)

    def take_status(self, status: Mapping[str, Any]) -> None:
        """Take what one daemon knows of the run."""
        self.outer_step = max(self.outer_step, int(_number(status, "outer_step", 0)))
        self.outer_steps = max(self.outer_steps, int(_number(status, "outer_steps", 0)))
        roster = status.get("roster")
        if isinstance(roster, list) and roster:
            self.roster = tuple(printable(str(each)) for each in cast(list[object], roster))
        self.leader = _text(status, "leader") or self.leader

    def eta_s(self, now: float) -> float | None:
        """Seconds until the last outer step, at the speed of the last rounds; None: unknown."""
        left = self.outer_steps - self.outer_step
        if len(self.commits) < 2 or left <= 0:
            return None
        round_s = (self.commits[-1] - self.commits[0]) / (len(self.commits) - 1)
        return max(0.0, left * round_s - max(0.0, now - self.commits[-1]))

    @property
    def step_text(self) -> str:
        return f"outer step {self.outer_step}" + f"/{self.outer_steps}" * bool(self.outer_steps)


class LiveView:
    """Shows one run. Use it as a context manager, and call `update` about once a second.

    On a terminal, the view is drawn in place. Elsewhere, each event is one flushed line that begins
    with the seconds since the run began, and about every SUMMARY_EVERY_S a line sums up the run.
    """

    def __init__(
        self, console: Console, run_name: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` returns unix seconds, like the times of events."""
        self._console = console
        self._run_name = printable(run_name)
        self._clock = clock
        self._live: Live | None = None
        self._begin: float | None = None
        self._summed_up = clock()
        self._introductions: list[Event] = []
        self._names: dict[str, str] = {}
        self._peers: dict[str, _Peer] = {}
        self._stories: deque[tuple[float, str]] = deque(maxlen=STORIES_SHOWN)
        self._told: dict[str, float] = {}
        self._progress = _Progress()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self._render(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, statuses: Sequence[Mapping[str, Any]], events: Sequence[Event]) -> None:
        """Show the latest status of each daemon that answers, and the events since the last
        call."""
        for event in events:
            self._take_event(event)
        for status in statuses:
            self._take_status(status)
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        elif self._clock() - self._summed_up >= SUMMARY_EVERY_S:
            self._summed_up = self._clock()
            self._print_line(self._clock(), self._sum_up())

    def _take_event(self, event: Event) -> None:
        if isinstance(event, Start | Member):
            self._introductions.append(event)
            self._names |= peer_names(self._introductions)
        if self._begin is None:
            self._begin = event.exec_t if isinstance(event, Start) else event.t
        if isinstance(event, Fault | Note):
            self._tell(event)  # The program that injects or notes it may be no peer.
            return
        peer = self._peers.setdefault(event.peer, _Peer())
        if (state := STATE_OF.get(type(event))) is not None:
            peer.state, peer.reason = state, peer.reason * bool(peer.gone)
        match event:
            case Start():
                self._peers[event.peer] = _Peer()
            case Waiting():
                peer.reason = event.reason
            case Member() if event.member in self._peers:
                self._peers[event.member].gone = ""
            case Lost() | Left():
                gone = self._peers.setdefault(event.member, _Peer())
                if gone.state != "finished":  # A peer that has finished leaves the run.
                    gone.gone, gone.reason = type(event).__name__.lower(), event.why
            case Metrics():
                peer.steps, peer.tokens_per_s, peer.loss = (
                    event.step,
                    event.tokens_per_s,
                    event.loss,
                )
                peer.bytes_sent, peer.bytes_received = event.bytes_sent, event.bytes_received
            case Traffic():
                peer.sent_per_s = event.sent_bytes_per_s
                peer.received_per_s, peer.lag_s = event.received_bytes_per_s, event.lag_p99_s
            case Commit() if event.fragment == ANCHOR:
                self._progress.take_commit(event)
            case _:
                pass
        self._tell(event)

    def _take_status(self, status: Mapping[str, Any]) -> None:
        name = _text(status, "name")
        members = status.get("members")
        if isinstance(members, Mapping):
            for member, member_name in cast(Mapping[object, object], members).items():
                self._names.setdefault(str(member), printable(str(member_name)))
        peer_id = _text(status, "peer")
        self._names.setdefault(peer_id, name or peer_id)
        peer = self._peers.setdefault(peer_id, _Peer())
        peer.state = _text(status, "state") or peer.state
        peer.reason = peer.reason if peer.gone else _text(status, "reason")
        peer.steps = int(_number(status, "inner_steps", peer.steps))
        peer.tokens_per_s = _number(status, "tokens_per_s", peer.tokens_per_s)
        peer.loss = _number(status, "loss", peer.loss)
        peer.bytes_sent = int(_number(status, "bytes_sent", peer.bytes_sent))
        peer.bytes_received = int(_number(status, "bytes_received", peer.bytes_received))
        peer.sent_per_s = _number(status, "sent_bytes_per_s", peer.sent_per_s)
        peer.received_per_s = _number(status, "received_bytes_per_s", peer.received_per_s)
        peer.lag_s = _number(status, "lag_p99_s", peer.lag_s)
        self._progress.take_status(status)

    def _tell(self, event: Event) -> None:
        text = story(event, self._names)
        if text is None or event.t - self._told.get(text, -math.inf) < REPEAT_S:
            return
        if len(self._told) >= TOLD_MAX:
            self._told.pop(next(iter(self._told)))
        self._told[text] = event.t
        self._stories.append((self._elapsed(event.t), text))
        if self._live is None:
            self._print_line(event.t, text)

    def _elapsed(self, t: float) -> float:
        return max(0.0, t - (t if self._begin is None else self._begin))

    def _print_line(self, t: float, text: str) -> None:
        line = Text(f"{self._elapsed(t):8.1f}  {text}")
        self._console.print(line, soft_wrap=True, highlight=False)  # Rich flushes each print.

    def _sum_up(self) -> str:
        live = [peer for peer in self._peers.values() if not peer.gone]
        losses = [peer.loss for peer in live if math.isfinite(peer.loss)]
        parts = [
            f"{self._progress.step_text} with {roster_text(self._progress.roster, self._names)}",
            f"{count_text(sum(peer.tokens_per_s for peer in live))} tokens/s",
            f"sent {bytes_text(sum(peer.bytes_sent for peer in self._peers.values()))}"
            f" ({bytes_text(sum(peer.sent_per_s for peer in live))}/s)",
        ]
        if losses:
            parts.insert(2, f"loss {sum(losses) / len(losses):.3f}")
        eta_s = self._progress.eta_s(self._clock())
        return "; ".join(parts if eta_s is None else [*parts, f"{seconds_text(eta_s)} left"])

    def _render(self) -> RenderableType:
        width, height = self._console.size
        # Seven lines: the head, the roster, the titles, two gaps, and two for "and 9 more".
        rows = min(len(self._peers), max(3, height - 7 - STORIES_MIN))
        stories = [*self._stories][-max(STORIES_MIN, height - 7 - rows) :]
        leader = self._progress.leader
        lead = f"; {self._names.get(leader, leader)} leads" if leader else ""
        roster = f"roster: {roster_text(self._progress.roster, self._names)}{lead}"
        return Group(
            self._render_head(),
            Text(roster, "dim", no_wrap=True, overflow="ellipsis"),
            Text(),
            self._render_peers(width, rows),
            Text(),
            *(
                Text(f"{elapsed:7.1f}  {text}", no_wrap=True, overflow="ellipsis")
                for elapsed, text in stories
            ),
        )

    def _render_head(self) -> Table:
        head = Table.grid(expand=True, padding=(0, 2, 0, 0))
        head.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        eta_s = self._progress.eta_s(self._clock())
        now = seconds_text(self._elapsed(self._clock()))
        times = now if eta_s is None else f"{now}, {seconds_text(eta_s)} left"
        progress = self._progress
        bar = ProgressBar(total=max(progress.outer_steps, 1), completed=progress.outer_step)
        head.add_row(Text(self._run_name, "bold"), progress.step_text, bar, times)
        return head

    def _render_peers(self, width: int, rows: int) -> Table:
        full, wide, medium = (
            width >= columns for columns in (FULL_COLUMNS, WIDE_COLUMNS, MEDIUM_COLUMNS)
        )
        totals, rates = ("sent", "received") * wide, ("out/s", "in/s", "loop lag") * full
        table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("peer", no_wrap=True, overflow="ellipsis", max_width=20)
        table.add_column("state", no_wrap=True)
        for title in ("steps", "tokens/s", "loss", *totals, *rates):
            table.add_column(title, justify="right", no_wrap=True)
        if medium:
            table.add_column("waits for", ratio=1, no_wrap=True, overflow="ellipsis")
        order = sorted(self._peers, key=lambda peer: self._names.get(peer, peer))
        for peer_id in order[:rows]:
            peer = self._peers[peer_id]
            state = peer.gone or peer.state
            cells = [
                Text(self._names.get(peer_id, peer_id)),
                Text(state, STYLES.get(state, "")),
                Text(str(peer.steps)),
                Text("" if peer.gone else count_text(peer.tokens_per_s)),
                Text(f"{peer.loss:.3f}" if math.isfinite(peer.loss) else ""),
            ]
            if wide:
                cells += [Text(bytes_text(peer.bytes_sent)), Text(bytes_text(peer.bytes_received))]
            if full:
                rates = (bytes_text(peer.sent_per_s), bytes_text(peer.received_per_s))
                figures = (*rates, milliseconds_text(peer.lag_s))
                cells += [Text("" if peer.gone else figure) for figure in figures]
            if medium:
                cells.append(Text(peer.reason, "dim"))
            table.add_row(*cells)
        if len(order) > rows:
            table.add_row(Text(f"and {len(order) - rows} more", "dim"))
        return table


def print_end(console: Console, summary: Summary, paths: Mapping[str, Path]) -> None:
    """Print the figures of a finished run, its peers, and `paths`, the places of its files by their
    titles."""
    figures = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    figures.add_column(no_wrap=True, style="dim")
    figures.add_column(no_wrap=True, style="bold")
    figures.add_column(overflow="fold")
    for what, figure, note in key_figures(summary):
        figures.add_row(Text(what), Text(figure), Text(note))
    peers = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    peers.add_column("peer", no_wrap=True, overflow="ellipsis", max_width=16)
    peers.add_column("state", no_wrap=True)
    titles = ("steps", "tokens", "loss", "sent") if console.width >= 72 else ("steps", "sent")
    for title in titles:
        peers.add_column(title, justify="right", no_wrap=True)
    peers.add_column("digest", no_wrap=True)
    for peer in summary.peers:
        state = peer.end or "runs"
        mark = {True: " =", False: " !=", None: ""}[peer.digests_agree]
        figure_of = {
            "steps": str(peer.inner_steps),
            "tokens": count_text(peer.tokens),
            "loss": "" if peer.loss is None else f"{peer.loss:.3f}",
            "sent": bytes_text(peer.bytes_sent),
        }
        peers.add_row(
            Text(peer.name),
            Text(state, STYLES.get(state, "" if peer.alive else "bold red")),
            *(Text(figure_of[title]) for title in titles),
            Text((peer.state_digest or "")[:8] + mark),
        )
    console.print(figures, peers)
    for what, path in paths.items():
        console.print(Text(f"{what}: {path}"), soft_wrap=True)


def _text(status: Mapping[str, Any], key: str) -> str:
    value = status.get(key)
    return "" if value is None else printable(str(value))


def _number(status: Mapping[str, Any], key: str, otherwise: float) -> float:
    """Return a number of a status, or `otherwise`: a daemon of another version may leave it out,
    and one without a value writes null."""
    value = status.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else otherwise
