"""A program that has started its daemon: it is answered once, and its end is noticed."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from peers.processes.adopted import HANDOVER, AdoptedProgram, adopted_program
from peers.processes.adopted_spawner import AdoptedSpawner
from peers.processes.supervisor import Exit, NotRunnable

CHILD = """
import asyncio
from peers.processes.adopted import adopted_program
from peers.processes.adopted_spawner import AdoptedSpawner

async def life():
    program = adopted_program()
    spawner = AdoptedSpawner(program, ["train.py"])
    await spawner.start([{"RANK": "0"}])
    print(await asyncio.wait_for(spawner.wait(), 20), program.is_gone, flush=True)
    await spawner.close()

asyncio.run(life())
"""
PARENT = """
import os, subprocess, sys
reading, writing = os.pipe()
variable = {os.environ.pop("NAME"): f"{writing}:{os.getpid()}:1:0"}
child = [sys.executable, "-c", sys.argv[1]]
subprocess.Popen(child, env={**os.environ, **variable}, pass_fds=(writing,))
os.close(writing)
print(os.read(reading, 1000).decode(), end="", flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_process_that_no_program_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HANDOVER, raising=False)
    assert adopted_program() is None
    for nonsense in ("x:1:1:0", "3:1"):
        monkeypatch.setenv(HANDOVER, nonsense)
        assert adopted_program() is None
        assert HANDOVER not in os.environ


def test_the_program_is_answered_and_its_end_is_noticed() -> None:
    argv = [sys.executable, "-c", PARENT, CHILD]
    done = subprocess.run(
        argv,
        env={**os.environ, "NAME": HANDOVER},
        capture_output=True,
        text=True,
        check=False,  # It kills itself.
        timeout=40,
    )
    answer, end = done.stdout.splitlines()
    assert json.loads(answer) == {"environment": {"RANK": "0"}}
    assert end == f"{Exit(None, 0)} True"


@pytest.mark.asyncio
async def test_a_program_attaches_once() -> None:
    reading, writing = os.pipe()
    program = AdoptedProgram(writing, os.getppid())
    spawner = AdoptedSpawner(program, ["python", "a b.py"])
    assert spawner.program == "the program `python 'a b.py'`"
    await spawner.start([{}])
    with pytest.raises(NotRunnable, match="attached before"):
        await spawner.start([{}])
    assert os.read(reading, 100) == b'{"environment": {}}\n'
    assert os.read(reading, 100) == b"", "our end is closed"
    os.close(reading)
    await spawner.close()


@pytest.mark.asyncio
async def test_the_end_of_a_launcher_is_that_of_its_ranks() -> None:
    launcher = await asyncio.create_subprocess_exec("sleep", "60")
    reading, writing = os.pipe()
    program = AdoptedProgram(writing, os.getppid(), ranks=2, launcher=launcher.pid)
    spawner = AdoptedSpawner(program, ["torchrun", "train.py"])
    await spawner.start([{}, {}])
    os.close(reading)
    ended = asyncio.ensure_future(spawner.wait())
    await asyncio.sleep(0.05)
    assert not ended.done()
    launcher.kill()
    assert await asyncio.wait_for(ended, 10) == Exit(None, 0, final=True)
    await launcher.wait()
    await spawner.close()


@pytest.mark.asyncio
async def test_a_program_that_is_gone_is_no_longer_answered() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = AdoptedProgram(writing, os.getppid())
    assert not program.answer({})
    other = AdoptedSpawner(AdoptedProgram(-1, os.getpid()), ["x"])
    with pytest.raises(NotRunnable, match="it has ended"):
        await asyncio.wait_for(other.start([{}]), 5)
    await other.close()
