"""A training program that cannot work: the node says so, ends, and names what is wrong."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lowcomm.reports.events import Checkpoint, Commit, RanksLost, Stopped, Waiting
from sims.paced.rank import RankSpeed
from tests.cluster.running import (
    Command,
    Shell,
    commits_until,
    marked_processes,
    new_shell,
    of,
    until,
    write_config,
)

PACED = RankSpeed(step_s=0.001, elements=6001)
WRONG_AT = 12
"""An inner step that comes after two rounds of five."""
PROGRAM = f"""
import os, sys, time
from lowcomm.training.attach import attach
from sims.paced.rank import PacedTrainer, RankSpeed

class Wrong(PacedTrainer):
    def _step(self):
        if self._rank.steps == {WRONG_AT}:
            raise ValueError(f"no row {{time.time_ns()}}")
        super()._step()

Wrong(attach(), RankSpeed(step_s={PACED.step_s}, elements={PACED.elements})).train()
"""

LEAVING = f"""
import os, sys, time
from lowcomm.training.attach import attach
from sims.paced.rank import PacedTrainer, RankSpeed

class Short(PacedTrainer):
    def _step(self):
        if self._rank.steps >= {WRONG_AT}:
            if sys.argv[1] == "close":
                peer.close()
                time.sleep(3)  # The model is saved, say.
                print("saved")
            if sys.argv[1] == "at once":
                os._exit(0)
            sys.exit()
        super()._step()

peer = attach()
Short(peer, RankSpeed(step_s={PACED.step_s}, elements={PACED.elements})).train()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with new_shell(tmp_path) as made:
        yield made


def started(shell: Shell, *program: str, options: Sequence[str] = ()) -> Command:
    where = ["--set", 'node.directory="alpha"', "--set", "node.name=alpha"]
    return shell.start("peer", "run.toml", "--new", *where, *options, "--", *program)


def last_line(command: Command) -> str:
    (line,) = [line for line in command.err.splitlines() if line.startswith("lowcomm: ")]
    return line


@pytest.mark.parametrize("mode", [None, 0o644])
def test_a_program_that_is_not_there_is_started_once(
    shell: Shell, tmp_path: Path, mode: int | None
) -> None:
    program = tmp_path / "trian"
    if mode is not None:
        program.write_text("#!/bin/sh\n", encoding="ascii")
        program.chmod(mode)
    command = started(shell, str(program))
    assert command.wait(within_s=20) == 2, command.err
    assert len(of(RanksLost, tmp_path / "alpha")) == 1
    why = "No such file or directory" if mode is None else "Permission denied"
    assert f"cannot run {program}: {why}" in last_line(command)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit('no data set')", ("ended with code 1", "no data set")),
        pytest.param(
            "import no_such_module",
            ("ModuleNotFoundError: No module named 'no_such_module'",),
            marks=pytest.mark.long,
        ),
        pytest.param("pass", ("ended with code 0",), marks=pytest.mark.long),
    ],
    ids=["exit", "import", "no attach"],
)
def test_a_program_that_ends_at_once_is_given_up(
    shell: Shell, tmp_path: Path, code: str, words: tuple[str, ...]
) -> None:
    command = started(shell, sys.executable, "-c", code)
    assert command.wait(within_s=20) == 4, command.err
    assert len(of(RanksLost, tmp_path / "alpha")) == 3
    line = last_line(command)
    for word in (sys.executable, "3 attempts", "inner step 0", "start this node again", *words):
        assert word in line
    assert str(tmp_path / "alpha" / "events.jsonl") in line


def test_a_directory_with_the_packages_name_is_told_once(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "lowcomm").mkdir()
    (tmp_path / "train.py").write_text(
        "import sys\nsys.path[1:] = []\nimport lowcomm\nlowcomm.attach()", encoding="utf-8"
    )
    command = started(shell, sys.executable, "train.py")
    assert command.wait(within_s=20) == 4, command.err
    assert len(of(RanksLost, tmp_path / "alpha")) == 1
    assert "a directory named lowcomm beside the program" in last_line(command)


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        (
            "import time; time.sleep(60)",
            4,
            ("not called lowcomm.attach()", "node.attach_timeout_s"),
        ),
        ("import lowcomm; lowcomm.attach()", 2, ("node.ranks is 2", "no launcher has set RANK")),
        (
            "import os, lowcomm; os.environ.update(RANK='0', WORLD_SIZE='3'); lowcomm.attach()",
            2,
            ("world of 3, not 2", "--set node.ranks=3"),
        ),
    ],
    ids=["never", "no launcher", "world size"],
)
def test_a_program_that_does_not_attach_as_it_must_ends_the_node_at_once(
    shell: Shell, tmp_path: Path, program: str, code: int, words: tuple[str, ...]
) -> None:
    limits = ["node.ranks=2", "node.attach_timeout_s=3", "node.hang_timeout_s=2"]
    options = [word for key in limits for word in ("--set", key)]
    command = started(shell, sys.executable, "-c", program, options=options)
    assert command.wait(within_s=20) == code, command.err
    assert len(of(RanksLost, tmp_path / "alpha")) <= 1
    for word in words:
        assert word in last_line(command)


SLOW = f"""
import os, time
from lowcomm.training.attach import attach
from sims.paced.rank import PacedTrainer, RankSpeed

class Slow(PacedTrainer):
    def _step(self):
        while self._rank.steps == 0 and not os.path.exists("compiled"):
            time.sleep(0.05)
        if self._rank.steps == {WRONG_AT}:
            time.sleep(60)
        super()._step()

Slow(attach(), RankSpeed(step_s={PACED.step_s}, elements={PACED.elements})).train()
"""


@pytest.mark.deadline(60)
def test_a_first_step_that_is_compiled_is_not_killed_and_a_later_step_that_hangs_is(
    shell: Shell, tmp_path: Path
) -> None:
    program, alpha = tmp_path / "slow.py", tmp_path / "alpha"
    program.write_text(SLOW, encoding="utf-8")
    options = ["--set", "node.hang_timeout_s=1"]
    command = started(shell, sys.executable, str(program), options=options)
    why = "the first step of its ranks, which torch.compile may make slow (at most 1800 s: node."
    until(lambda: f"alpha waits: {why}" in command.err, within_s=40, what="the wait is printed")
    told = json.loads(shell.run("status", str(alpha), "--json").out)
    assert (told["state"], told["reason"].startswith(why)) == ("training", True)
    assert told["since_s"] >= 5
    assert abs(told["since_s"] + told["until_s"] - 1800) < 1e-6
    (tmp_path / "compiled").touch()
    until(lambda: of(RanksLost, alpha), within_s=40, what="the hung step is found")
    (lost, *_) = of(RanksLost, alpha)
    assert f"counts no step for 1 s (at step {WRONG_AT}; node.hang_timeout_s)" in lost.why
    assert len(of(Commit, alpha)) >= 2, "the first step was waited for"


@pytest.mark.deadline(60)
def test_the_same_exception_at_the_same_step_ends_the_node_though_rounds_were_committed(
    shell: Shell, tmp_path: Path
) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = started(shell, sys.executable, str(program))
    assert command.wait(within_s=40) == 4, command.err
    assert len(of(RanksLost, tmp_path / "alpha")) == 3
    assert len(of(Commit, tmp_path / "alpha")) >= 3, "there was progress in each attempt"
    line = last_line(command)
    for word in (str(program), "3 attempts", f"inner step {WRONG_AT}", "ended with code 1"):
        assert word in line
    assert "ValueError: no row" in line
    assert f"lowcomm resume {tmp_path / 'alpha'}" in line
    assert command.err.count("Traceback (most recent call last)") == 3, "what it printed is there"


@pytest.mark.deadline(60)
@pytest.mark.parametrize("way", ["exit", "close", "at once"])
def test_a_program_that_ends_by_itself_leaves_the_run(
    shell: Shell, tmp_path: Path, way: str
) -> None:
    program = tmp_path / "short.py"
    program.write_text(LEAVING, encoding="utf-8")
    command = started(shell, sys.executable, str(program), way)
    assert command.wait(within_s=40) == 0, command.err
    alpha = tmp_path / "alpha"
    assert not of(RanksLost, alpha)
    assert [event.why for event in of(Stopped, alpha)] == ["its program has ended"]
    assert len(of(Commit, alpha)) >= 2
    assert of(Checkpoint, alpha)[-1].round == of(Commit, alpha)[-1].round, "nothing is lost"
    assert ("saved" in command.out) == (way == "close"), "it has its time after its last step"
    assert "lowcomm: " not in command.err


ORPHANS = """
import os, time
if os.fork() == 0:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(1000)
"""


@pytest.mark.deadline(60)
def test_nothing_that_a_program_has_started_outlives_its_killed_daemon(
    shell: Shell, tmp_path: Path
) -> None:
    program = tmp_path / "orphans.py"
    program.write_text(ORPHANS + LEAVING.replace(str(WRONG_AT), "1000000"), encoding="utf-8")
    started(shell, sys.executable, str(program), "exit")
    commits_until(tmp_path / "alpha", 2)
    assert len(marked_processes()) == 4, "daemon, reaper, program, orphan"
    shell.kill(tmp_path / "alpha")
    until(lambda: not marked_processes(), within_s=10, what="every process gone")


def test_a_founder_says_that_it_waits_for_its_own_program(shell: Shell, tmp_path: Path) -> None:
    began = time.monotonic()
    started(shell, sys.executable, "-c", "import time; time.sleep(60)")
    alpha = tmp_path / "alpha"
    until(lambda: of(Waiting, alpha), within_s=20, what="it says that it waits")
    assert "time.sleep(60)" in of(Waiting, alpha)[-1].reason
    assert "to attach" in of(Waiting, alpha)[-1].reason
    told = shell.run("status", str(alpha), "--json").out
    assert "to attach" in told
    assert time.monotonic() - began < 30
