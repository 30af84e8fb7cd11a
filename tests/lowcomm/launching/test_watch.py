"""The state of each host, as the view shows it, and the answer to its question."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lowcomm.config.schema import NodeConfig, RunConfig
from lowcomm.launching.hosts_file import HostConfig, HostsFile, Launch
from lowcomm.launching.launch import HostConnections
from lowcomm.launching.transport import HostError
from lowcomm.launching.watch import HostWatch, chosen, print_ends
from lowcomm.reports.events import Note

RUNNING = {"state": "running", "why": "", "code": None}


def watch_of(*names: str) -> HostWatch:
    hosts = tuple(HostConfig(host="local", name=name) for name in names)
    file = HostsFile(hosts=hosts)
    run, node = RunConfig(), NodeConfig()
    launch = Launch(Path("hosts.toml"), file, Path("run.toml"), run, node, "runs/first")
    return HostWatch(launch, HostConnections(), since={})


def take(watch: HostWatch, name: str, **report: Any) -> None:
    empty: dict[str, Any] = {"supervisor": None, "peer": "", "status": None, "events": [], "at": 0}
    line = {**empty, **report}
    watch._take_report(watch.hosts[name], json.dumps(line).encode())
    watch._tell_change(name, watch.hosts[name])


def notes(watch: HostWatch) -> list[str]:
    return [event.text for event in watch.take_events() if isinstance(event, Note)]


def test_a_daemon_that_answers_is_shown_by_its_status() -> None:
    watch = watch_of("a", "b")
    status = {"peer": "a.1", "name": "a", "state": "training"}
    take(watch, "a", supervisor=RUNNING, peer="a.1", status=status)
    take(watch, "b", supervisor=RUNNING)
    assert watch.statuses() == [status]
    assert notes(watch) == []


def test_a_restart_is_told_once_and_shown_meanwhile() -> None:
    watch = watch_of("a")
    waits = {"state": "waiting", "why": "it ended with -9: restart 1 of 10", "code": -9}
    for _ in range(2):
        take(watch, "a", supervisor=waits, peer="a.1")
    (status,) = watch.statuses()
    assert (status["state"], status["reason"]) == ("restarting", waits["why"])
    # The view may see it only when the peer runs again.
    take(watch, "a", supervisor={**RUNNING, "why": waits["why"]}, peer="a.1")
    assert notes(watch) == [waits["why"]]


def test_events_are_decoded_and_damaged_lines_left_out() -> None:
    watch = watch_of("a")
    event = {"t": 5.0, "peer": "a.1", "name": "a", "kind": "note", "topic": "x", "text": "y"}
    take(watch, "a", events=[json.dumps(event), "{", '{"kind": "of a newer version"}'], at=99)
    assert watch.hosts["a"].at == 99
    assert "y" in notes(watch)


def test_a_host_that_prints_something_else_is_named() -> None:
    watch = watch_of("a")
    for line in (b"Welcome to gpu1\n", b"[]\n", b"{}\n"):
        with pytest.raises(HostError, match="it prints no report"):
            watch._take_report(watch.hosts["a"], line)


def test_the_watch_ends_when_all_have_ended_for_good() -> None:
    watch = watch_of("a", "b")
    ended = {"state": "ended", "why": "the run is finished", "code": 0}
    take(watch, "a", supervisor=ended)
    take(watch, "b", supervisor={**RUNNING, "state": "gone", "why": "its supervisor is gone"})
    assert not watch.has_ended
    take(watch, "b", supervisor=ended)
    assert watch.has_ended
    watch.hosts["b"].problem = "no answer"
    assert not watch.has_ended


@pytest.mark.parametrize(
    ("codes", "status"), [((0, 0), 0), ((0, 143), 143), ((143, 2), 4), ((0, -9), 4)]
)
def test_the_exit_status_says_how_the_nodes_have_ended(codes: tuple[int, int], status: int) -> None:
    watch = watch_of("a", "b")
    for name, code in zip("ab", codes, strict=True):
        take(watch, name, supervisor={"state": "ended", "why": "over", "code": code})
    console = Console(file=io.StringIO(), width=100)
    assert print_ends(watch.launch, watch.hosts, console) == status
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith(f"a has ended with {codes[0]}: over\n")


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("d\n", "detach"),
        ("\n", "continue"),
        ("", "detach"),
        ("Stop\n", "stop"),
        ("s\n", "stop"),
        ("c\n", "continue"),
        ("what?\n", "continue"),
    ],
)
def test_only_a_clear_word_stops_the_run(line: str, meaning: str) -> None:
    assert chosen(line) == meaning
