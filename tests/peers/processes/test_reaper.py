"""A reaper leaves nothing of its command, in whatever session it is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peers.processes.processes import leaving_nothing

ORPHAN = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()  # A session of its own, and its parent ends: it would belong to init.
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(100)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def orphans_in(path: Path) -> list[int]:
    """The processes that the command has left, once they are there."""
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, "the command does not start"
        time.sleep(0.01)
    return [int(word) for word in path.read_text().split()]


def ended(pids: list[int], *, within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("last", "code"),
    [("sys.exit(7)", 7), ("os.kill(os.getpid(), 15)", -15), ("os.kill(os.getpid(), 9)", -9)],
)
def test_orphans_end_with_the_command_and_its_status_is_told(
    tmp_path: Path, last: str, code: int
) -> None:
    argv = [sys.executable, "-c", f"{ORPHAN}{last}", str(tmp_path / "pids")]
    done = subprocess.run(leaving_nothing(argv), check=False, timeout=30)
    assert done.returncode == code
    assert ended(orphans_in(tmp_path / "pids"), within_s=0)


def test_all_end_with_the_parent(tmp_path: Path) -> None:
    """The parent is SIGKILLed, and can end nothing itself."""
    command = [sys.executable, "-c", f"{ORPHAN}time.sleep(100)", str(tmp_path / "pids")]
    places = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    start = (
        "import subprocess, sys; from peers.processes.processes import leaving_nothing; "
        "subprocess.call(leaving_nothing(sys.argv[1:]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", start, *command], env=places)
    pids = orphans_in(tmp_path / "pids")
    assert all(map(is_alive, pids))
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    assert ended(pids)


def test_a_command_that_cannot_be_run_is_told() -> None:
    done = subprocess.run(
        leaving_nothing(["/nonexistent/command"]), check=False, capture_output=True, text=True
    )
    assert done.returncode == 127
    assert done.stderr == "cannot run /nonexistent/command: No such file or directory\n"
