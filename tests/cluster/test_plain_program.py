"""Plain `python train.py`: the program starts its node's daemon, which leaves the run with it."""

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lowcomm.reports.events import Checkpoint, Commit, Finished, RanksLost, Start, Stopped
from tests.cluster.running import (
    Command,
    Shell,
    commits_until,
    marked_processes,
    new_shell,
    of,
    record,
    token_of,
    until,
    write_config,
)

PROGRAM = """
import os, sys, time
import lowcomm
from sims.paced.rank import PacedTrainer, RankSpeed

name, join, end = sys.argv[1:4]

class Mine(PacedTrainer):
    def _step(self):
        if self._rank.steps == 12:
            if end == "exit":
                sys.exit(3)
            if end == "raise":
                raise ValueError("no row 7")
            if end == "hang":
                time.sleep(60)
        super()._step()

own = [f"node.name={name}", f'node.directory="{name}"', *sys.argv[4:]]
open(f"rank {os.environ.get('RANK', 0)}", "w").write(str(os.getpid()))
peer = lowcomm.attach(run="run.toml", join=join, overrides=own)
Mine(peer, RankSpeed(step_s=0.01, elements=6001)).train()
time.sleep(1)
print("finished", peer.finished)
"""


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class PlainShell(Shell):
    """Starts `python train.py`, or `torchrun train.py`."""

    def program(
        self, name: str, *settings: str, join: str = "", end: str = "", by: Sequence[str] = ()
    ) -> Command:
        argv = [sys.executable, *by, "train.py", name, join, end, *settings]
        return self.launch(argv, {**os.environ, "OMP_NUM_THREADS": "1"})

    def torchrun(self, name: str, *settings: str) -> Command:
        """The program on two ranks."""
        return self.program(name, *settings, by=TORCHRUN)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PlainShell]:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    with new_shell(tmp_path):
        made = PlainShell(tmp_path)
        try:
            yield made
        finally:
            for command in made.commands:
                if command.popen.poll() is None:
                    command.popen.kill()
                command.popen.wait(10)
            until(lambda: not marked_processes(), within_s=15, what="every daemon ended")


def last_error(command: Command) -> str:
    return command.err.strip().splitlines()[-1]


@pytest.mark.deadline(90)
def test_one_founds_the_run_and_another_joins_it(shell: PlainShell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=2, rounds=20)
    alpha = shell.program("alpha")
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token_of(tmp_path / "alpha"), encoding="ascii")
    beta = shell.program("beta", join="@token")
    for name, command in (("alpha", alpha), ("beta", beta)):
        assert command.wait(within_s=60) == 0, command.err
        assert command.out.endswith("finished True\n"), "it goes on after the run"
        assert of(Finished, tmp_path / name)
    assert any(len(event.roster) == 2 for event in of(Commit, tmp_path / "alpha"))
    assert marked_processes() == {}, "the daemon has ended before its program"


@pytest.mark.deadline(60)
@pytest.mark.parametrize(("end", "code"), [("exit", 3), ("raise", 1)])
def test_the_node_leaves_when_its_program_ends(
    shell: PlainShell, tmp_path: Path, end: str, code: int
) -> None:
    write_config(tmp_path, peers=1, rounds=100_000)
    command = shell.program("alpha", end=end)
    assert command.wait(within_s=40) == code, command.err
    assert marked_processes() == {}
    assert ("ValueError: no row 7" in command.err) == (end == "raise")
    left_in_order(tmp_path / "alpha")


@pytest.mark.long
@pytest.mark.deadline(60)
def test_the_node_leaves_when_its_program_is_killed_and_can_be_resumed(
    shell: PlainShell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=1, rounds=60)
    command = shell.program("alpha")
    commits_until(tmp_path / "alpha", 2)
    command.signal(signal.SIGKILL)
    command.wait(within_s=10)
    until(lambda: not marked_processes(), within_s=10, what="the daemon ended")
    left_in_order(tmp_path / "alpha")
    resumed = shell.run("resume", "alpha", within_s=40)
    assert resumed.popen.returncode == 0, resumed.err
    assert resumed.out == "finished True\n", "the daemon starts the program now"


def left_in_order(directory: Path) -> None:
    assert [event.why for event in of(Stopped, directory)] == ["its program has ended"]
    assert not of(RanksLost, directory)
    assert of(Checkpoint, directory)[-1].round == of(Commit, directory)[-1].round


@pytest.mark.deadline(60)
def test_a_step_that_hangs_ends_program_and_node(shell: PlainShell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=1, rounds=100_000)
    command = shell.program("alpha", "node.hang_timeout_s=1", end="hang")
    assert command.wait(within_s=40) == -signal.SIGKILL, command.err
    until(lambda: not marked_processes(), within_s=10, what="the daemon ended")
    assert "lowcomm: rank 0 hangs: it counts no step for 1 s (at step 12; node." in command.err


def test_what_is_wrong_is_one_line_in_the_program(shell: PlainShell, tmp_path: Path) -> None:
    missing = shell.program("alpha")
    assert missing.wait(within_s=30) == 1
    assert last_error(missing).endswith(
        "ConfigError: cannot read run.toml: No such file or directory"
    )
    write_config(tmp_path, peers=1, rounds=5)
    token = shell.program("alpha", join="nonsense")
    assert token.wait(within_s=30) == 1
    assert "ConfigError: " in last_error(token)
    assert "token" in last_error(token)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        port = shell.program("alpha", f'node.listen="{address}"')
        assert port.wait(within_s=30) == 1
    assert address in last_error(port)
    assert "Error: " in last_error(port)
    several = shell.program("alpha", "node.ranks=2")
    assert several.wait(within_s=30) == 1
    assert "ConfigError: node.ranks is 2" in last_error(several)
    assert not any("lowcomm: " in command.err for command in shell.commands), "told once"


@pytest.mark.deadline(120)
def test_of_the_ranks_of_torchrun_the_first_starts_the_daemon(
    shell: PlainShell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=2, rounds=20)
    alpha = shell.torchrun("alpha")
    beta = shell.program("beta", join=token_of(tmp_path / "alpha"))
    for name, command in (("alpha", alpha), ("beta", beta)):
        assert command.wait(within_s=90) == 0, command.err
        assert of(Finished, tmp_path / name)
    assert alpha.out.count("finished True\n") == 2
    assert len(of(Start, tmp_path / "alpha")) == 1, "one daemon"
    assert of(Start, tmp_path / "alpha")[0].ranks == 2, "no configuration says it"
    assert any(len(event.roster) == 2 for event in of(Commit, tmp_path / "alpha"))
    assert marked_processes() == {}


@pytest.mark.deadline(120)
@pytest.mark.parametrize("killed", ["a rank", pytest.param("torchrun", marks=pytest.mark.long)])
def test_a_node_of_torchrun_leaves_when_a_rank_or_torchrun_is_killed(
    shell: PlainShell, tmp_path: Path, killed: str
) -> None:
    write_config(tmp_path, peers=1, rounds=100_000)
    command = shell.torchrun("alpha")
    commits_until(tmp_path / "alpha", 2)
    victim = int((tmp_path / "rank 1").read_text()) if killed == "a rank" else command.pid
    assert victim in marked_processes()
    os.kill(victim, signal.SIGKILL)
    assert command.wait(within_s=60) != 0
    until(lambda: not marked_processes(), within_s=20, what="nothing outlives it")
    left_in_order(tmp_path / "alpha")
    assert "--nproc-per-node" in record(tmp_path / "alpha")["command"], "for `lowcomm resume`"


@pytest.mark.deadline(90)
def test_another_number_of_ranks_than_the_nodes_is_told(shell: PlainShell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=1, rounds=5)
    command = shell.torchrun("alpha", "node.ranks=3")
    assert command.wait(within_s=80) == 1
    why = "node.ranks is 3, but the program that starts this node itself runs 2 processes (LOCAL_"
    assert f"ConfigError: {why}" in command.err
    assert "`torchrun --nproc-per-node 3`" in command.err
