"""A node's directory: one daemon at a time, the same peer in each life."""

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from lowcomm.config.schema import FileConfig, NodeConfig, RunConfig
from lowcomm.startup import identity
from lowcomm.startup.identity import (
    COPY,
    RECORD,
    NodeDirectory,
    NodeRecord,
    RunningRecord,
    exec_time,
    in_use,
    is_node,
    new_peer_id,
    node_directories,
    node_name,
    read_record,
    recorded_config,
)
from protocols.types.errors import ConfigError


def test_the_nodes_of_a_run_and_of_a_node(tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / RECORD).touch()
    assert node_directories(tmp_path / "run") == [tmp_path / "run" / "a", tmp_path / "run" / "b"]
    assert node_directories(tmp_path / "run" / "b") == [tmp_path / "run" / "b"]
    with pytest.raises(ConfigError, match=r"nowhere does not exist: give .*runs/NAME"):
        node_directories(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"holds no node: give .*runs/NAME"):
        node_directories(tmp_path)


def test_a_directory_is_held_by_one_daemon_at_a_time(tmp_path: Path) -> None:
    node = tmp_path / "node"
    assert not in_use(node)
    first = NodeDirectory(node)
    assert in_use(node)
    with pytest.raises(ConfigError, match=r"node is in use by a running peer: stop it"):
        NodeDirectory(node)
    first.close()
    assert not in_use(node)
    NodeDirectory(node).close()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from lowcomm.startup.identity import NodeDirectory\n"
        "NodeDirectory(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == -9
    assert (tmp_path / identity.LOCK).exists()
    assert not in_use(tmp_path)


def test_looking_holds_nothing(tmp_path: Path) -> None:
    NodeDirectory(tmp_path).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert not in_use(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/x: Not a directory; .*--set node.directory=PATH"):
        NodeDirectory(tmp_path / "file" / "x")


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    node = NodeDirectory(tmp_path)
    assert node.read() is None
    record = NodeRecord(
        peer="a.1", name="a", incarnation=3, run=7, join="h:1", command=("torchrun", "x"), pid=5
    )
    node.write(record)
    assert node.read() == record == read_record(tmp_path)
    node.close()


def test_what_a_running_node_learns_is_in_its_record_at_once(tmp_path: Path) -> None:
    with closing(NodeDirectory(tmp_path)) as node:
        running = RunningRecord(node, NodeRecord(peer="a.1", name="a", incarnation=3))
        assert node.read() is None
        running.remember_bus("ipc://x")
        running.remember_run(7)
        assert node.read() == running.record
        assert (running.record.bus, running.record.run) == ("ipc://x", 7)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "3", '{"peer": "a"}', '{"wings": 2}', '{"command": 3}', "\0"]
)
def test_a_damaged_record_is_told(text: str, tmp_path: Path) -> None:
    """Seen: "start this node in a new directory", beside a log and complete checkpoints."""
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(ConfigError, match=r"node\.json cannot be read: .* from a backup") as told:
        read_record(tmp_path)
    assert f"log and checkpoints are still in {tmp_path}" in str(told.value)
    assert "new directory" not in str(told.value)
    (tmp_path / COPY).write_text(text)
    with pytest.raises(ConfigError, match="from a backup"):
        read_record(tmp_path)


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_damaged_record_has_a_copy(damage: str, tmp_path: Path) -> None:
    directory = tmp_path / "a node"
    with closing(NodeDirectory(directory)) as node:
        record = NodeRecord(peer="a.1", name="a", incarnation=3, run=7, join="TOKEN")
        node.write(record)
    assert (directory / COPY).stat().st_mode & 0o777 == 0o600
    if damage == "torn":
        (directory / RECORD).write_text("{")
    else:
        (directory / RECORD).unlink()
    assert is_node(directory)
    said = "cannot be read" if damage == "torn" else "is gone"
    with pytest.raises(ConfigError, match=rf"node\.json {said}.* its copy is whole") as told:
        read_record(directory)
    command = str(told.value).split("`")[1]
    subprocess.run(command, shell=True, check=True)
    assert read_record(directory) == record


def test_the_recorded_configuration_comes_back_checked(tmp_path: Path) -> None:
    config = FileConfig(run=RunConfig(seed=4), node=NodeConfig(ranks=2))
    text = json.dumps(asdict(config))
    record = asdict(NodeRecord(peer="a.1", name="a", incarnation=1, config=text))
    (tmp_path / RECORD).write_text(json.dumps(record))
    assert recorded_config(tmp_path) == config
    record["config"] = text.replace('"ranks": 2', '"ranks": "two"')
    (tmp_path / RECORD).write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"node\.json.*node\.ranks.*'two'"):
        recorded_config(tmp_path)
    record["config"] = "{"
    (tmp_path / RECORD).write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="config is not JSON"):
        recorded_config(tmp_path)
    with pytest.raises(ConfigError, match="no node's directory"):
        recorded_config(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["a", "A-1_b", "7", "x" * 32])
def test_names(name: str) -> None:
    assert node_name(name) == name


@pytest.mark.parametrize("name", ["a/b", "..", "-a", "a b", "x" * 33, "caf\u00e9", "a\n"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.name .* letters, digits"):
        node_name(name)


@pytest.mark.parametrize(
    ("host", "name"),
    [("rack-7.lab.example", "rack-7"), ("_odd_", "odd"), ("y" * 50, "y" * 32)],
)
def test_a_node_without_a_name_has_the_hosts(
    host: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity.socket, "gethostname", lambda: host)
    assert node_name("") == name


def test_peer_ids_are_readable_and_never_the_same() -> None:
    ids = {new_peer_id("alpha") for _ in range(100)}
    assert len(ids) == 100
    assert all(each.startswith("alpha.") for each in ids)


def test_the_start_of_a_process_is_known_to_a_tick() -> None:
    program = "from lowcomm.startup.identity import exec_time; print(exec_time())"
    before = time.time()
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert before - 0.05 <= float(done.stdout) <= time.time()
    assert exec_time() < before
