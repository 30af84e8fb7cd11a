"""What the shell that started a command sees when a signal ends it, and when a person does not."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Left, Start, Stopped, Witness
from peers.ipc.command_bus import StopPeer, ask_daemon
from tests.cluster.paced_shell import PacedShell
from tests.cluster.running import (
    Command,
    commits,
    commits_until,
    ending,
    of,
    record,
    token_of,
    until,
    write_config,
)

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}
EACH = pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PacedShell]:
    write_config(tmp_path, peers=1, rounds=1_000_000)
    with ending(PacedShell(tmp_path)) as made:
        yield made


def ends(command: Command, number: signal.Signals) -> None:
    command.signal(number)
    assert command.wait(within_s=10) == SIGNALS[number], command.err
    assert "Traceback" not in command.err


@pytest.mark.deadline(60)
@EACH
def test_a_signal_ends_a_node_a_resumed_one_and_a_witness_with_its_own_code(
    shell: PacedShell, tmp_path: Path, number: signal.Signals
) -> None:
    alpha, beta, watch = (tmp_path / name for name in ("alpha", "beta", "watch"))
    first = shell.node("alpha", "--new")
    token = token_of(alpha)
    second = shell.node("beta", "--join", token)
    own = ("--set", f"node.directory={json.dumps(str(watch))}", "--set", "node.name=watch")
    words = token_of(alpha, witness=True)
    witness = shell.start("witness", "--join", words, *own)
    until(lambda: of(Witness, alpha), within_s=20, what="a witness")
    commits_until(beta, 2)
    told = shell.run("status", str(tmp_path), "--json").out
    states = {line["name"]: line["state"] for line in map(json.loads, told.splitlines())}
    assert set(states) == {"alpha", "beta", "watch"}, "every node has its line"
    assert states["watch"] == "voting"
    ends(witness, number)
    ends(second, number)

    def gone() -> bool:
        return {event.member_name for event in of(Left, alpha)} == {"watch", "beta"}

    until(gone, within_s=5, what="both left, and said so")
    assert of(Stopped, beta)[-1].why == number.name
    ends(first, number)
    again = shell.start("resume", str(alpha))
    until(lambda: record(alpha)["pid"] == again.pid, within_s=20, what="alpha's next life")
    commits_until(alpha, max(commits(alpha)) + 1)
    ends(again, number)


@EACH
def test_a_node_that_knows_no_run_yet_ends_with_the_same_code(
    shell: PacedShell, tmp_path: Path, number: signal.Signals
) -> None:
    first = shell.node("alpha", "--new")
    token = token_of(tmp_path / "alpha")
    first.signal(signal.SIGKILL)
    first.wait(within_s=5)
    alone = shell.node("beta", "--join", token)
    until(lambda: of(Start, tmp_path / "beta"), within_s=20, what="beta starting")
    ends(alone, number)


@pytest.mark.long
@pytest.mark.deadline(90)
def test_a_supervisor_repeats_the_command_until_it_ends_with_0(
    shell: PacedShell, tmp_path: Path
) -> None:
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"

    def dies_and_starts_again(directory: Path, *way: str) -> None:
        for dies in (True, False):
            node, had = shell.node(directory.name, *way), max(commits(directory), default=0)
            commits_until(directory, had + 2)
            if dies:
                node.signal(signal.SIGKILL)
                node.wait(within_s=5)
        assert record(directory)["incarnation"] == 2

    dies_and_starts_again(alpha, "--new")
    dies_and_starts_again(beta, "--join", token_of(alpha))
    for said in ("", "short finished after 2 outer steps"):
        short = shell.node("short", "--new", "--set", "run.outer_steps=2")
        assert short.wait(within_s=20) == 0, short.err
        assert said in short.out


def test_a_node_that_is_asked_to_leave_ends_with_0(shell: PacedShell, tmp_path: Path) -> None:
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    shell.node("alpha", "--new")
    leaver = shell.node("beta", "--join", token_of(alpha))
    commits_until(beta, 2)
    assert ask_daemon(str(record(beta)["bus"]), StopPeer(), timeout_s=5)["type"] == "stopping"
    assert leaver.wait(within_s=10) == 0, leaver.err


@pytest.mark.deadline(60)
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.long
def test_a_signal_ends_a_whole_run_with_its_own_code(
    shell: PacedShell, tmp_path: Path, number: signal.Signals
) -> None:
    launcher = shell.start("sim", "run.toml", "--peers", "1")
    commits_until(tmp_path / "runs" / "tiny" / "alpha", 1, within_s=40)
    ends(launcher, number)
