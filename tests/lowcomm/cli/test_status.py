"""`lowcomm status` without a daemon; tests/cluster asks real ones."""

import json
import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from lowcomm.cli.status import ask_all, finished, print_tables
from lowcomm.reports.event_log import EVENTS
from lowcomm.startup.identity import RECORD, NodeDirectory, NodeRecord
from lowcomm.startup.running_status import ask
from peers.ipc.command_bus import Status, ask_daemon
from peers.ipc.msgpack_records import LinkError

ANSWER: dict[str, object] = {
    "peer": "alpha.1",
    "name": "alpha",
    "state": "reducing",
    "reason": "round 7: beta",
    "since_s": 2.6,
    "until_s": 57.4,
    "inner_steps": 140,
    "loss": 1.5,
    "outer_step": 6,
    "outer_steps": 24,
    "address": "127.0.0.1:4711",
    "sent_bytes_per_s": 1.5 * 2**20,
    "received_bytes_per_s": 0.0,
    "lag_p99_s": 0.0021,
}


def write_node(directory: Path, *kinds: dict[str, object]) -> None:
    directory.mkdir(parents=True)
    record = NodeRecord(peer="a.1", name="a", incarnation=1, bus="ipc:///nowhere/at/all")
    (directory / RECORD).write_text(json.dumps(asdict(record)))
    common = {"t": 1.0, "peer": "a.1", "name": "a"}
    lines = [json.dumps({**common, "t": n, **kind}) + "\n" for n, kind in enumerate(kinds)]
    (directory / EVENTS).write_text("".join(lines))


START: dict[str, object] = {"kind": "start", "pid": 1, "exec_t": 0.0, "ranks": 1, "params": 0}
KEPT: dict[str, object] = {"kind": "checkpoint", "path": "kept/here", "round": 9}
END: dict[str, object] = {
    "kind": "finished",
    "outer_steps": 9,
    "bytes_sent": 0,
    "bytes_received": 0,
    "state_digest": "d",
}


def test_a_daemon_that_is_gone_does_not_answer(tmp_path: Path) -> None:
    write_node(tmp_path / "a")
    assert ask(tmp_path / "a") is None
    assert ask(tmp_path / "nowhere") is None
    assert ask_all(tmp_path) == []


def test_every_node_gets_its_line_whatever_one_of_them_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A witness of an earlier lowcomm has no bus, and a disk may have lost a record."""
    write_node(tmp_path / "dead")
    write_node(tmp_path / "torn")
    (tmp_path / "torn" / RECORD).write_text("{")
    with closing(NodeDirectory(tmp_path / "mute")) as held:
        held.write(
            NodeRecord(peer="m.1", name="mute", incarnation=1, pid=os.getpid(), witness=True)
        )
        lines = ask_all(tmp_path)
    states = [(line["name"], line["state"]) for line in lines]
    assert states == [("a", "not running"), ("mute", "silent"), ("torn", "unreadable")]
    assert str(os.getpid()) in str(lines[1]["reason"])
    print_tables(lines)
    shown = capsys.readouterr().out
    assert "None" not in shown
    assert "silent" in shown


def test_an_endpoint_that_is_none_is_an_error_of_the_link() -> None:
    with pytest.raises(LinkError, match="cannot be asked"):
        ask_daemon("", Status(), timeout_s=0.1)


@pytest.mark.parametrize(
    ("kinds", "is_over"),
    [
        ([START, KEPT, END], True),
        ([START, KEPT], False),
        ([START, KEPT, END, START], False),  # It was started anew.
        ([START, START, KEPT, END], True),
    ],
)
def test_a_run_is_over_when_its_last_life_says_so(
    kinds: list[dict[str, object]], is_over: bool, tmp_path: Path
) -> None:
    write_node(tmp_path / "a", START)
    write_node(tmp_path / "b", *kinds)
    over = finished([tmp_path / "a", tmp_path / "b"])
    expected = "finished after 9 outer steps: nothing to resume; its last checkpoint is kept/here"
    assert over == (expected if is_over else "")


def test_the_table_says_whom_and_how_long_a_peer_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    calm = {**ANSWER, "name": "beta", "reason": "", "loss": None}
    print_tables([ANSWER, calm])
    head, alpha, beta, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["peer", "state"]
    assert "6/24" in alpha
    assert "1.500" in alpha
    assert "round 7: beta (for 3 s, 57 s left)" in alpha
    assert "None" not in beta
    assert "left" not in beta


def test_below_it_stands_what_each_peer_moves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    old = {**ANSWER, "name": "beta", "lag_p99_s": None, "sent_bytes_per_s": "?"}
    print_tables([ANSWER, old])
    *_, gap, head, alpha, beta = capsys.readouterr().out.splitlines()
    assert gap.strip() == ""
    assert head.split() == ["peer", "address", "out/s", "in/s", "loop", "lag"]
    assert alpha.split() == ["alpha", "127.0.0.1:4711", "1.5", "MiB", "0", "B", "2.1", "ms"]
    assert beta.split() == ["beta", "127.0.0.1:4711", "0", "B"]


def test_the_samples_of_the_run_stand_below_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    behind = {**ANSWER, "outer_step": 5, "samples": 800, "samples_again": 0}
    ahead = {**ANSWER, "samples": 960, "samples_again": 40}
    print_tables([behind, ahead])
    assert "samples: 960 committed, 40 leased again" in capsys.readouterr().out
    print_tables([behind])
    assert capsys.readouterr().out.endswith("samples: 800 committed\n")
    print_tables([ANSWER])
    assert "samples" not in capsys.readouterr().out


def test_what_a_stranger_named_itself_cannot_paint_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_tables([{**ANSWER, "name": "[red]x[/red]", "reason": "\x1b[31mall\x07"}])
    out = capsys.readouterr().out
    assert "[red]x[/red]" in out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_no_daemon_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([])
    assert "no daemon of this run answers" in capsys.readouterr().out
