"""Children die with their parent, with their whole session, and leave no zombie."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peers.processes.die_with_parent import EXIT_CANNOT_RUN
from peers.processes.processes import dying_with_us, kill_descendants, start_child, wait_ended

ROOT = Path(__file__).parents[3]

# Prints its own pid and that of a child which `setsid` may put into a session of its own.
FAMILY = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "100"], start_new_session=sys.argv[1] == "apart")
os.write(int(sys.argv[2]), b"%d\\n" % child.pid)
child.wait()
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def ends(pidfd: int, *, within_s: float = 10.0) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    ended = bool(poller.poll(1000 * within_s))
    os.close(pidfd)
    return ended


def read_pid(fd: int) -> int:
    with os.fdopen(fd) as stream:
        return int(stream.readline())


@pytest.mark.asyncio
async def test_a_childs_exit_status_is_told() -> None:
    child = start_child([sys.executable, "-c", "raise SystemExit(5)"], env=dict(os.environ))
    assert await asyncio.wait_for(child.wait(), 10) == 5
    assert await child.stop() == 5
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.asyncio
async def test_stop_kills_the_whole_session() -> None:
    reading, writing = os.pipe()
    argv = [sys.executable, "-c", FAMILY, "together", str(writing)]
    child = start_child(argv, env=dict(os.environ), pass_fds=[writing])
    os.close(writing)
    assert os.getsid(child.pid) == child.pid
    grandchild = os.pidfd_open(read_pid(reading))
    assert await child.stop() == -signal.SIGKILL
    assert ends(grandchild)
    assert await child.stop() == -signal.SIGKILL, "idempotent"


@pytest.mark.asyncio
async def test_what_a_child_left_behind_ends_with_it() -> None:
    reading, writing = os.pipe()
    argv = [sys.executable, "-c", FAMILY.replace("child.wait()", ""), "together", str(writing)]
    child = start_child(argv, env=dict(os.environ), pass_fds=[writing])
    os.close(writing)
    grandchild = os.pidfd_open(read_pid(reading))
    assert await asyncio.wait_for(child.wait(), 10) == 0
    assert ends(grandchild)


@pytest.mark.asyncio
async def test_a_stopped_child_is_killed() -> None:
    child = start_child(["sleep", "100"], env=dict(os.environ))
    os.kill(child.pid, signal.SIGSTOP)
    assert await child.stop() == -signal.SIGKILL


@pytest.mark.asyncio
async def test_a_cancelled_stop_has_still_reaped() -> None:
    child = start_child(["sleep", "100"], env=dict(os.environ))
    stopping = asyncio.create_task(child.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert child.returncode == -signal.SIGKILL


@pytest.mark.asyncio
async def test_descendants_in_other_sessions_are_killed() -> None:
    reading, writing = os.pipe()
    argv = [sys.executable, "-c", FAMILY, "apart", str(writing)]
    child = start_child(argv, env=dict(os.environ), pass_fds=[writing])
    os.close(writing)
    grandchild_pid = read_pid(reading)
    assert os.getsid(grandchild_pid) == grandchild_pid
    grandchild = os.pidfd_open(grandchild_pid)
    killed = kill_descendants(child.pid)
    assert len(killed) == 1
    await child.stop()
    await wait_ended(killed)
    assert ends(grandchild, within_s=0)


def test_a_reaper_ends_with_a_parent_that_is_killed_while_it_kills() -> None:
    """Seen: the reaper had just been stopped when the daemon was killed, and stayed for ever."""
    program = (
        "import os, subprocess; from peers.processes import processes\n"
        "command = ['sh', '-c', 'echo $$; exec sleep 100']\n"
        "pipe = subprocess.PIPE\n"
        "command = processes.leaving_nothing(command)\n"
        "child = subprocess.Popen(command, stdout=pipe, start_new_session=True)\n"
        "child.stdout.readline(); print(child.pid, flush=True); input()\n"
        "processes.kill_descendants(child.pid); os.abort()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        reaper = os.pidfd_open(int(parent.stdout.readline()))
        parent.communicate(b"\n")
        assert ends(reaper)


@pytest.mark.asyncio
async def test_a_missing_command_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        start_child(["/nonexistent/command"], env={})
    child = start_child(dying_with_us(["/nonexistent/command"]), env=dict(os.environ))
    assert await asyncio.wait_for(child.wait(), 10) == EXIT_CANNOT_RUN


def test_a_command_dies_with_the_process_that_started_it() -> None:
    program = (
        "import os, subprocess, sys; from peers.processes.processes import dying_with_us\n"
        "child = subprocess.Popen(dying_with_us(['sh', '-c', 'echo $$; exec sleep 100']),"
        " start_new_session=True)\n"
        "child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        command = os.pidfd_open(int(parent.stdout.readline()))
        assert not select.select([command], [], [], 0)[0]
        parent.kill()
        assert ends(command)


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    module, somebody_else = "peers.processes.die_with_parent", 1
    program = f"from {module} import die_with_parent; die_with_parent({somebody_else})"
    result = subprocess.run([sys.executable, "-c", program], timeout=10, check=False)
    assert result.returncode == -signal.SIGKILL
