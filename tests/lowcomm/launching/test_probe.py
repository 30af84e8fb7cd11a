"""What a host tells of itself, and that any Python can ask it."""

import ast
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from lowcomm.launching import probe
from lowcomm.launching.supervisor import PID
from peers.storage.file_lock import open_locked

STANDARD = {"fcntl", "importlib", "json", "os", "shutil", "socket", "struct", "sys", "time"}


def test_it_needs_nothing_but_an_old_python() -> None:
    text = Path(probe.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 6))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= STANDARD | {"typing"}


def test_a_host_answers_from_the_standard_input(tmp_path: Path) -> None:
    question = {"directory": str(tmp_path / "runs" / "a"), "iface": "lo", "port": 0}
    program = Path(probe.__file__).read_bytes()
    argv = [sys.executable, "-", json.dumps(question)]
    answer = json.loads(subprocess.check_output(argv, input=program))
    assert answer["python"] == ".".join(map(str, sys.version_info[:3]))
    assert answer["lowcomm"] == version("lowcomm")
    assert answer["torch"]
    assert answer["address"] == "127.0.0.1"
    assert (answer["port_fault"], answer["can_write"], answer["runs"]) == ("", True, False)
    assert answer["free_bytes"] > 0
    assert answer["events_bytes"] == 0
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_package_or_interface_is_empty() -> None:
    assert probe.version_of("no-such-package-here") == ""
    assert probe.address_of("nowhere0") == ""


def test_a_supervisor_is_known_by_its_lock(tmp_path: Path) -> None:
    assert not probe.is_supervised(str(tmp_path))
    path = tmp_path / PID
    lock = open_locked(path, make=True)
    path.write_text(f"{os.getpid()}\n", encoding="ascii")
    assert probe.is_supervised(str(tmp_path))
    os.close(lock)
    assert not probe.is_supervised(str(tmp_path))
