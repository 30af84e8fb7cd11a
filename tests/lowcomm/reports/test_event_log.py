"""A node's events on disk and its plain lines, over several lives of the daemon."""

import io
import json
import math
import os
import re
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from lowcomm.reports.event_log import EVENTS, EventLog
from lowcomm.reports.events import Fault, Metrics, Stopped
from lowcomm.reports.timeline import decode, read_timeline
from protocols.types.ids import PeerId

ALPHA = PeerId("alpha.1f0c9a2e")
BETA = "beta.00000002"


def open_journal(directory: Path) -> EventLog:
    directory.mkdir(exist_ok=True)
    return EventLog(directory, peer=ALPHA, name="alpha")


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / EVENTS).read_bytes().splitlines()]


def test_a_line_says_who_and_when_and_is_on_the_page_at_once(tmp_path: Path) -> None:
    before = time.time()
    event_log = open_journal(tmp_path)
    event_log.write("ranks_ready", attempt=2)
    [line] = lines(tmp_path)  # Nothing was closed: a SIGKILL now would lose nothing.
    assert before <= line.pop("t") <= time.time()
    assert line == {"peer": ALPHA, "name": "alpha", "kind": "ranks_ready", "attempt": 2}
    event_log.close()


def test_a_full_disk_costs_lines_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event_log, limits = open_journal(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    event_log.write("ranks_ready", attempt=1)
    size = (tmp_path / EVENTS).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        for attempt in (2, 3, 4):  # The first one in part, the others not at all.
            event_log.write("ranks_ready", attempt=attempt)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    event_log.write("ranks_ready", attempt=5)
    event_log.close()
    first, torn, last = (tmp_path / EVENTS).read_bytes().splitlines()
    assert [json.loads(line)["attempt"] for line in (first, last)] == [1, 5]
    assert len(torn) == 10
    told = capsys.readouterr().err
    assert told.count("cannot write events.jsonl") == 1
    assert "can be written again; 3 events were not recorded" in told


def test_what_was_written_is_read_back_as_records(tmp_path: Path) -> None:
    event_log = open_journal(tmp_path / "alpha")
    event_log.write("fault", what="a\nb")  # One event, one line, whatever it holds.
    event_log.write(
        "metrics",
        step=5,
        tokens=6,
        loss=math.nan,
        tokens_per_s=7.5,
        bytes_sent=8,
        bytes_received=9,
    )
    event_log.close()
    found = read_timeline(tmp_path)
    assert found.problems == ()
    fault, metrics = found.events
    assert isinstance(fault, Fault)
    assert isinstance(metrics, Metrics)
    assert (metrics.step, metrics.tokens_per_s) == (5, 7.5)
    assert math.isnan(metrics.loss)


@pytest.mark.parametrize("torn", ['{"t": 1.0, "peer"', "{", '{"t": 1, "kind": "stopped"}'])
def test_a_line_torn_by_a_kill_costs_only_itself(tmp_path: Path, torn: str) -> None:
    first = open_journal(tmp_path / "alpha")
    first.write("stopped", why="one")
    first.close()
    with (tmp_path / "alpha" / EVENTS).open("a") as file:
        file.write(torn)
    second = open_journal(tmp_path / "alpha")
    second.write("stopped", why="two")
    second.close()
    found = read_timeline(tmp_path)
    assert [event.why for event in found.events if isinstance(event, Stopped)] == ["one", "two"]
    assert len(found.problems) == 1
    assert found.problems[0].startswith("alpha/events.jsonl:2: ")


def test_a_whole_history_is_taken_up_as_it_is(tmp_path: Path) -> None:
    for _ in range(3):
        event_log = open_journal(tmp_path)
        event_log.write("stopped", why="again")
        event_log.close()
    raw = (tmp_path / EVENTS).read_bytes()
    assert raw.count(b"\n") == len(raw.splitlines()) == 3
    assert all(decode(line) for line in raw.splitlines())


def test_a_daemon_that_starts_writes_nothing_by_itself(tmp_path: Path) -> None:
    open_journal(tmp_path).close()
    assert (tmp_path / EVENTS).read_bytes() == b""


def test_plain_lines_tell_the_story_with_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event_log = open_journal(tmp_path)
    event_log.names[BETA] = "beta"
    event_log.write("lost", member=BETA, member_name="beta", why=f"{BETA} sent nothing for 5 s")
    event_log.write("ready", fragment=0, round=1, steps=2, tokens=3)  # No story for people.
    event_log.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"\[ +\d+\.\d\d alpha\] beta lost \(beta sent nothing for 5 s\)\n", err)


def test_what_peers_say_reaches_the_terminal_without_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event_log = open_journal(tmp_path)
    event_log.write("lost", member=BETA, member_name="b", why="\x1b[2J\ud800\nx")
    event_log.close()
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.endswith(" beta lost (?[2J??x)\n")


@pytest.mark.parametrize(
    ("kind", "fields"), [("stoped", {"why": "x"}), ("stopped", {}), ("stopped", {"why": 1})]
)
def test_an_event_of_our_own_that_nobody_could_read_is_a_mistake(
    tmp_path: Path, kind: str, fields: dict[str, object]
) -> None:
    event_log = open_journal(tmp_path)
    with pytest.raises(AssertionError, match=kind):
        event_log.write(kind, **fields)
    event_log.close()
    assert (tmp_path / EVENTS).read_bytes() == b""


def test_a_terminal_that_is_gone_does_not_stop_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    event_log = open_journal(tmp_path)
    # Unbuffered: closing a buffered file would try once more to write what is left.
    raw: Any = io.FileIO(writing, "w")
    with io.TextIOWrapper(raw, write_through=True) as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        event_log.write("stopped", why="one")
        event_log.say("two")
        monkeypatch.undo()
    event_log.close()
    assert len(lines(tmp_path)) == 1
