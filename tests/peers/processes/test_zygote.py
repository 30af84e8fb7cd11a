"""The zygote on its wire: it forks, tells, kills, and dies with its daemon."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from peers.processes.zygote import PACKET_BYTES_MAX

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[1]


class Zygote:
    """A running zygote, and our end of its socket."""

    def __init__(self, target: str, preload: str = "") -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(10)
        command = [sys.executable, "-m", "peers.processes.zygote", "--fd", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), "--target", target, "--preload", preload]
        with theirs:
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True
            )

    def fork(self, *environments: dict[str, str]) -> list[int]:
        """The pids of the ranks."""
        self.channel.send(json.dumps({"fork": environments}).encode())
        return self.hear()["forked"]

    def kill(self) -> None:
        self.channel.send(json.dumps({"kill": True}).encode())

    def hear(self) -> dict[str, Any]:
        return json.loads(self.channel.recv(PACKET_BYTES_MAX))

    def output(self) -> str:
        """All that was printed; ends the zygote."""
        self.channel.close()
        return self.process.communicate(timeout=10)[0]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{HERE}")
    monkeypatch.delenv("BEHAVIOUR", raising=False)


@pytest.fixture
def zygote(request: pytest.FixtureRequest) -> Generator[Zygote]:
    started = Zygote(request.param)
    yield started
    started.process.kill()
    started.channel.close()
    started.process.communicate()


def is_gone(pidfd: int) -> bool:
    gone = bool(select.select([pidfd], [], [], 10)[0])
    os.close(pidfd)
    return gone


@pytest.mark.parametrize("zygote", ["rank_programs:chatter"], indirect=True)
def test_a_rank_has_its_variables_and_its_status_is_told(zygote: Zygote) -> None:
    assert zygote.hear() == {"ready": True}
    assert len(zygote.fork({"RANK": "0", "CODE": "0"}, {"RANK": "1", "CODE": "5"})) == 2
    exits = sorted((zygote.hear() for _ in range(2)), key=lambda message: message["exited"])
    assert exits == [{"exited": 0, "returncode": 0}, {"exited": 1, "returncode": 5}]
    zygote.fork({"RANK": "2", "OMP_NUM_THREADS": "3"})
    assert zygote.hear() == {"exited": 0, "returncode": 0}
    words = zygote.output().split()
    assert words[4:] == ["2", "3"], "what a rank prints is flushed, although it ends abruptly"
    assert {words[0], words[2]} == {"0", "1"}


@pytest.mark.parametrize("zygote", ["rank_programs:wait"], indirect=True)
def test_ranks_are_killed_and_reaped_on_request(zygote: Zygote) -> None:
    zygote.hear()
    pids = zygote.fork({}, {})
    assert have_sessions(pids)
    os.kill(pids[1], signal.SIGSTOP)
    zygote.kill()
    for index in range(2):
        assert zygote.hear() == {"exited": index, "returncode": -signal.SIGKILL}
    assert zygote.hear() == {"killed": True}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    zygote.kill()
    assert zygote.hear() == {"killed": True}


def have_sessions(pids: list[int]) -> bool:
    """A rank makes its session soon after the fork."""
    for _ in range(1000):
        if [os.getsid(pid) for pid in pids] == pids:
            return True
        select.select([], [], [], 0.01)
    return False


@pytest.mark.parametrize("how", ["killed", "stream ends"])
@pytest.mark.parametrize("zygote", ["rank_programs:wait"], indirect=True)
def test_ranks_die_with_the_zygote(zygote: Zygote, how: str) -> None:
    zygote.hear()
    pids = zygote.fork({}, {})
    assert have_sessions(pids), "by then they have asked for their death signal"
    pidfds = [os.pidfd_open(pid) for pid in pids]
    signal.pidfd_send_signal(pidfds[0], signal.SIGSTOP)
    if how == "killed":
        zygote.process.kill()
    else:
        zygote.channel.close()
    assert [is_gone(pidfd) for pidfd in pidfds] == [True, True]
    assert zygote.process.wait(10) == (-signal.SIGKILL if how == "killed" else 0)


@pytest.mark.parametrize("zygote", ["rank_programs:leave_a_child"], indirect=True)
def test_what_a_rank_left_behind_ends_with_it(zygote: Zygote, tmp_path: Path) -> None:
    zygote.hear()
    zygote.fork({"PID_FILE": str(tmp_path / "pid")})
    assert zygote.hear() == {"exited": 0, "returncode": 0}
    with contextlib.suppress(ProcessLookupError):
        assert is_gone(os.pidfd_open(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("zygote", ["rank_programs:missing", "no_such_module:main"], indirect=True)
def test_a_target_that_cannot_run_is_a_status(zygote: Zygote) -> None:
    assert zygote.hear() == {"ready": True}
    zygote.fork({})
    assert zygote.hear() == {"exited": 0, "returncode": 1}


def test_a_module_that_cannot_be_imported_ends_the_zygote() -> None:
    zygote = Zygote("rank_programs:wait", preload="json,no_such_module")
    assert zygote.channel.recv(10) == b""
    zygote.output()
    assert zygote.process.returncode == 1


def test_preloaded_modules_are_there_before_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module counts its imports by appending to a file."""
    module = tmp_path / "counted.py"
    module.write_text(
        "import os\n"
        "with open(os.environ['COUNT_FILE'], 'a') as file: file.write('x')\n"
        "def main(): return 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "count"))
    zygote = Zygote("counted:main", preload="counted")
    zygote.hear()
    for _ in range(3):
        zygote.fork({})
        assert zygote.hear() == {"exited": 0, "returncode": 0}
    zygote.output()
    assert (tmp_path / "count").read_text() == "x"


@pytest.mark.parametrize("behaviour", ["", "stop"])
def test_nothing_survives_a_killed_daemon(behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEHAVIOUR", behaviour)
    with tempfile.TemporaryDirectory(prefix="lc") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        command = [sys.executable, "-c", "import rank_programs as p; p.daemon()"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
            assert daemon.stdout is not None
            pids = json.loads(daemon.stdout.readline())
            assert len(pids) == 3, "the zygote and two ranks"
            pidfds = [os.pidfd_open(pid) for pid in pids]
            if behaviour == "stop":
                wait_until_stopped(pids[1:])
            assert not select.select(pidfds, [], [], 0)[0]
            daemon.kill()
            for pidfd in pidfds:
                assert select.select([pidfd], [], [], 10)[0]
                os.close(pidfd)


def wait_until_stopped(pids: list[int]) -> None:
    """Until one of them has stopped itself."""
    for _ in range(1000):
        if "T" in [state_of(pid) for pid in pids]:
            return
        select.select([], [], [], 0.01)
    raise AssertionError("no rank stopped itself")


def state_of(pid: int) -> str:
    """One letter, "Z" for a zombie that nobody has reaped yet; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
