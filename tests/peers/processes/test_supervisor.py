"""Spawners: an attempt is started, told about, and ended without a trace."""

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from peers.processes.supervisor import (
    CommandSpawner,
    Exit,
    Spawner,
    SpawnError,
    ZygoteSpawner,
    free_port,
    rank_environments,
)
from protocols.types.errors import ConfigError

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{HERE}")
    monkeypatch.delenv("BEHAVIOUR", raising=False)


S = TypeVar("S", bound=Spawner)


@asynccontextmanager
async def closing(spawner: S) -> AsyncGenerator[S]:
    try:
        yield spawner
    finally:
        await spawner.close()


async def next_exit(spawner: Spawner) -> Exit:
    return await asyncio.wait_for(spawner.wait(), 10)


def zygote(target: str) -> ZygoteSpawner:
    return ZygoteSpawner([], target=f"rank_programs:{target}")


def zygote_pid(spawner: ZygoteSpawner) -> int:
    assert spawner._zygote is not None
    return spawner._zygote._child.pid


@pytest.mark.asyncio
async def test_each_rank_that_ends_is_told_once() -> None:
    async with closing(zygote("chatter")) as spawner:
        await spawner.start([{"RANK": str(rank), "CODE": str(rank)} for rank in range(3)])
        exits = {await next_exit(spawner) for _ in range(3)}
        assert exits == {Exit(0, 0), Exit(1, 1), Exit(2, 2)}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(spawner.wait(), 0.05)


@pytest.mark.asyncio
async def test_the_zygote_is_kept_across_attempts() -> None:
    async with closing(zygote("wait")) as spawner:
        await spawner.start([{}, {}])
        first = zygote_pid(spawner)
        await spawner.stop()
        await spawner.stop()
        await spawner.start([{}])
        assert zygote_pid(spawner) == first
        with pytest.raises(TimeoutError):  # Ends of the attempt before are not told again.
            await asyncio.wait_for(spawner.wait(), 0.05)


@pytest.mark.asyncio
async def test_a_dead_zygote_is_the_end_of_all_ranks_and_is_replaced() -> None:
    async with closing(zygote("wait")) as spawner:
        await spawner.start([{}, {}])
        first = zygote_pid(spawner)
        os.kill(first, signal.SIGKILL)
        assert await next_exit(spawner) == Exit(None, -signal.SIGKILL)
        await spawner.stop()
        await spawner.start([{}])
        assert zygote_pid(spawner) != first


@pytest.mark.asyncio
async def test_a_zygote_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peers.processes.supervisor.ANSWER_TIMEOUT_S", 0.1)
    async with closing(zygote("wait")) as spawner:
        await spawner.start([{}])
        first = zygote_pid(spawner)
        os.kill(first, signal.SIGSTOP)
        await spawner.stop()
        await spawner.start([{}])
        assert zygote_pid(spawner) != first


@pytest.mark.asyncio
async def test_a_zygote_that_cannot_import_is_an_error() -> None:
    async with closing(ZygoteSpawner(["no_such_module"], target="x:y")) as spawner:
        with pytest.raises(SpawnError, match="ended with 1"):
            await spawner.start([{}])
    async with closing(ZygoteSpawner([], target="x:y", python="/nonexistent/python")) as spawner:
        with pytest.raises(SpawnError, match="/nonexistent/python"):
            await spawner.start([{}])


@pytest.mark.asyncio
@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("method", ["start", "stop", "close"])
async def test_cancelling_leaves_nothing_behind(method: str, turns: int) -> None:
    """The leak check of all tests looks for what is left."""
    async with closing(zygote("wait")) as spawner:
        if method != "start":
            await spawner.start([{}, {}])
        action = spawner.start([{}]) if method == "start" else getattr(spawner, method)()
        task = asyncio.ensure_future(action)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.asyncio
async def test_a_command_is_one_process_for_all_ranks() -> None:
    program = (
        "import os; assert 'RANK' not in os.environ; raise SystemExit(int(os.environ['CODE']))"
    )
    async with closing(CommandSpawner([sys.executable, "-c", program])) as spawner:
        await spawner.start([{"CODE": "6", "RANK": "0"}, {"CODE": "6", "RANK": "1"}])
        assert await next_exit(spawner) == Exit(None, 6)
        await spawner.stop()
        await spawner.start([{"CODE": "0", "RANK": "0"}, {"CODE": "0", "RANK": "1"}])
        assert await next_exit(spawner) == Exit(None, 0)


@pytest.mark.asyncio
async def test_all_that_a_command_started_is_killed() -> None:
    reading, writing = os.pipe()
    program = (
        "import os, signal, subprocess, sys\n"
        "output = os.open(sys.argv[1], os.O_WRONLY)\n"
        "for _ in range(2):\n"
        "    child = subprocess.Popen(['sleep', '100'], start_new_session=True)\n"
        "    os.write(output, b'%d\\n' % child.pid)\n"
        "if os.fork() == 0:\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    os.setsid()\n"
        "    os.write(output, b'%d\\n' % os.getpid())\n"
        "signal.pause()"
    )
    output = f"/proc/{os.getpid()}/fd/{writing}"
    async with closing(CommandSpawner([sys.executable, "-c", program, output])) as spawner:
        await spawner.start([{}])
        with os.fdopen(reading) as stream:
            pidfds = [os.pidfd_open(int(stream.readline())) for _ in range(3)]
        await spawner.stop()
        assert all(select.select([pidfd], [], [], 0)[0] for pidfd in pidfds), "and waited for"
    for fd in (*pidfds, writing):
        os.close(fd)


@pytest.mark.asyncio
async def test_a_missing_command_is_told() -> None:
    async with closing(CommandSpawner(["/nonexistent/command"])) as spawner:
        await spawner.start([{}])
        with pytest.raises(ConfigError, match="cannot run /nonexistent/command: No such file"):
            await next_exit(spawner)


def test_an_exit_reads_well() -> None:
    assert str(Exit(1, -9)) == "rank 1 was killed by signal 9"
    assert str(Exit(None, 3)) == "the ranks' process ended with code 3"


def test_ranks_get_what_torchrun_would_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environments = rank_environments(4, ranks=2, port=2222, socket_path="/s")
    assert environments[1] == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "2222",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "2222",
        "LOWCOMM_SOCKET": "/s",
        "LOWCOMM_ATTEMPT": "4",
        "OMP_NUM_THREADS": "1",
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert "OMP_NUM_THREADS" not in rank_environments(0, ranks=1, port=1, socket_path="")[0]


def two_free_ports() -> int:
    """The lower of two neighbours, below those that the kernel hands out to others meanwhile."""
    for port in range(11000, 20000, 2):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", port))
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two neighbouring ports are free")


def test_a_port_that_is_taken_or_was_tried_is_not_chosen() -> None:
    port = two_free_ports()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(SpawnError, match="no free port"):
            free_port((port, port), avoid=0)
        for _ in range(20):
            assert free_port((port, port + 1), avoid=0) == port + 1
    assert free_port((port, port), avoid=port) == port, "the only one there is"
