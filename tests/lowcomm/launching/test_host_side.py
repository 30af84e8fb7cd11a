"""What a host does with the requests of `lowcomm launch`."""

import json
import subprocess
from pathlib import Path

import pytest

from lowcomm.launching import host_side
from lowcomm.launching.host_side import new_lines, report, start, stop
from lowcomm.launching.supervisor import COMMAND, PID, STATE, TOKEN, read_state
from peers.processes.processes import own_module
from protocols.types import ConfigError


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert new_lines(path, 0) == ([], 0)
    path.write_text('{"a": 1}\n{"b"', encoding="utf-8")
    assert new_lines(path, 0) == (['{"a": 1}'], 9)
    path.write_text('{"a": 1}\n{"b": 2}\n', encoding="utf-8")
    assert new_lines(path, 9) == (['{"b": 2}'], 18)
    assert new_lines(path, 18) == ([], 18)
    path.write_text("{}\n", encoding="utf-8")  # Another file.
    assert new_lines(path, 18) == (["{}"], 3)


def test_a_line_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_side, "EVENT_BYTES_MAX", 16)
    path = tmp_path / "events.jsonl"
    path.write_text("x" * 20 + "\n{}\n", encoding="utf-8")
    lines, at = new_lines(path, 0)
    assert (lines, at) == ([], 16)
    assert new_lines(path, at) == (["xxxx", "{}"], 24)


def test_a_supervisor_that_is_gone_is_told(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    (tmp_path / STATE).write_text('{"state": "running", "peer_pid": 7}', encoding="utf-8")
    (tmp_path / PID).write_text("999999999\n", encoding="ascii")
    state = read_state(tmp_path)
    assert state is not None
    assert state.state == "gone"
    assert report(tmp_path) == {
        "supervisor": {
            "state": "gone",
            "why": "its supervisor is gone",
            "code": None,
            "restarts": 0,
            "peer_pid": 7,
            "since": 0.0,
            "until": 0.0,
        },
        "peer": "",
        "status": None,
    }
    assert stop(tmp_path)["state"]  # Nothing to stop.


def test_nothing_is_started_where_no_request_has_been(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was never started by `lowcomm launch`"):
        start(tmp_path / "a", {})


def test_a_supervisor_runs_the_command_and_notes_its_end(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "a"
    request = {"arguments": ["--version"], "restarts": 3, "config": "[run]\n", "token": "secret"}
    # It outlives the process that starts it.
    argv = [*own_module("lowcomm.launching.host_side"), "start", str(directory)]
    started = subprocess.run(
        argv, input=json.dumps(request).encode(), capture_output=True, check=False
    )
    assert json.loads(started.stdout)["already"] is False, started.stderr
    host_side._await(lambda: ended(directory), within_s=60, what="it has not ended")
    state = read_state(directory)
    assert state is not None
    assert (state.code, state.restarts) == (0, 0)
    assert "0.1" in (directory / "daemon.log").read_text()
    assert (directory / TOKEN).read_text() == "secret"
    for name in (TOKEN, "run.toml", "daemon.log"):
        assert (directory / name).stat().st_mode & 0o077 == 0, name
    assert json.loads((directory / COMMAND).read_text()) == {
        "arguments": ["--version"],
        "restarts": 3,
    }


def ended(directory: Path) -> bool:
    state = read_state(directory)
    return state is not None and state.state == "ended"
