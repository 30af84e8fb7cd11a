"""A handle tells the end of a process and kills no other one, with pidfds and without."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from peers.processes import process_handles
from peers.processes.process_handles import POLL_S, ProcessHandle
from peers.processes.processes import kill_descendants, start_child, wait_ended

NOTICED_S = 40 * POLL_S
"""At once, on a busy machine."""
FAMILY = """
import subprocess, sys
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""

pytestmark = [pytest.mark.usefixtures("pidfds"), pytest.mark.asyncio]


def start(*argv: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(argv, stdout=subprocess.PIPE)


def state_of(pid: int) -> str:
    """One letter; "Z" for a zombie, since an orphan is reaped by the machine's first process in
    its own time; empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def ended(handle: ProcessHandle) -> float:
    """Seconds until the end was told."""
    began, told = time.monotonic(), asyncio.Event()
    handle.watch(told.set)
    await asyncio.wait_for(told.wait(), 10)
    return time.monotonic() - began


async def test_the_end_of_a_child_is_told_before_it_is_reaped() -> None:
    process = start("sleep", "100")
    handle = ProcessHandle(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    told = asyncio.create_task(ended(handle))
    await asyncio.sleep(3 * POLL_S)
    assert not told.done(), "a stopped process has not ended"
    handle.kill()
    await told
    handle.kill()  # A zombie: nothing happens.
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    handle.kill()
    assert await ended(handle) < NOTICED_S, "told again of a process that has ended"
    handle.close()
    handle.close()


async def test_a_process_that_is_reaped_already_has_no_handle() -> None:
    process = start("true")
    process.communicate()
    with pytest.raises(ProcessLookupError):
        ProcessHandle(process.pid)
    with pytest.raises(OSError):  # noqa: PT011  # Its text is the kernel's.
        ProcessHandle(0)  # As SO_PEERCRED says of a process in another namespace.


async def test_what_is_not_watched_any_more_is_not_told() -> None:
    process = start("sleep", "100")
    handle = ProcessHandle(process.pid)
    handle.watch(lambda: pytest.fail("told after all"))
    handle.unwatch()
    handle.unwatch()
    handle.watch(lambda: pytest.fail("told after all"))
    handle.close()
    process.kill()
    process.communicate()
    await asyncio.sleep(3 * POLL_S)


async def test_a_later_process_with_the_same_id_is_not_killed(
    pidfds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pidfds in ("pidfds", "no signals"):
        return  # The kernel sees to it.
    process = start("sleep", "100")
    handle = ProcessHandle(process.pid)
    look = process_handles._state_of  # pyright: ignore[reportPrivateUsage]

    def later(pid: int) -> tuple[bytes, int]:
        state, started = look(pid)
        return state, started + 1

    monkeypatch.setattr(process_handles, "_state_of", later)
    handle.kill()
    assert await ended(handle) < NOTICED_S
    assert process.poll() is None
    process.kill()
    process.communicate()


async def test_a_childs_end_is_told_and_all_that_it_started_ends() -> None:
    child = start_child([sys.executable, "-c", "raise SystemExit(5)"], env=dict(os.environ))
    assert await asyncio.wait_for(child.wait(), 10) == 5
    child = start_child(["sleep", "100"], env=dict(os.environ))
    os.kill(child.pid, signal.SIGSTOP)
    assert await child.stop() == -signal.SIGKILL
    with start(sys.executable, "-c", FAMILY) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        killed = kill_descendants(parent.pid)
        assert [handle.pid for handle in killed] == [grandchild]
        parent.kill()
    await wait_ended(killed)
    assert state_of(grandchild) in "Z"
