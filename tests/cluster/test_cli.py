"""What people get wrong: one clear line, the right exit code, and nobody else is disturbed."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Lost
from lowcomm.startup.join_tokens import new_token
from tests.cluster.running import (
    Command,
    Shell,
    commits,
    commits_until,
    listens,
    new_shell,
    of,
    token_of,
    until,
    write_config,
)

OTHER_PROTOCOL = "import protocols.types.ids\nprotocols.types.ids.PROTOCOL_VERSION += 1"
IMPATIENT = "import peers.connections.dialer\npeers.connections.dialer.FIRST_DIAL_S = 0.1"

DAEMON: dict[str, tuple[str, tuple[str, ...]]] = {
    "an unknown key": (
        "run.toml --set run.method.inner_stepz=3",
        ("unknown key run.method.inner_stepz", "inner_steps"),
    ),
    "a directory that cannot be": (
        "run.toml --set node.directory=run.toml/x",
        ("node.directory", "run.toml/x", "--set node.directory=PATH"),
    ),
    "no corpus": (
        "run.toml --set node.corpus=nowhere",
        ("node.corpus", "nowhere", "folder"),
    ),
    "a model of too few tensors": (
        'run.toml --set run.method.name="decoupled_diloco" --set run.method.inner_steps=99'
        " --set run.method.fragments=99",
        ("run.method.fragments is 99", "this model has", "tensors", "at most"),
    ),
}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with new_shell(tmp_path) as made:
        yield made


def assert_refused(command: Command, code: int, words: tuple[str, ...]) -> None:
    """One line of the program itself, after the daemon's own if one was started."""
    assert command.popen.returncode == code, command.err
    assert "Traceback" not in command.err
    (line,) = [line for line in command.err.splitlines() if line.startswith("lowcomm: ")]
    for word in words:
        assert word in line


@pytest.mark.parametrize("case", DAEMON)
def test_a_mistake_is_one_line_and_exit_code_2(case: str, shell: Shell) -> None:
    arguments, words = DAEMON[case]
    assert_refused(shell.run("peer", "--new", *arguments.split()), 2, words)


@pytest.mark.deadline(100)
@pytest.mark.long
def test_strangers_are_refused_while_the_run_goes_on(shell: Shell, tmp_path: Path) -> None:
    shell.peer("alpha", "run.toml", "--new")
    alpha = tmp_path / "alpha"
    address, token = listens(alpha), token_of(alpha)
    commits_until(alpha, 1)

    def refused(code: int, *words: str, arguments: str, before: str = "") -> None:
        name = f"stranger{len(shell.commands)}"
        own = ["--set", f"node.name={name}"] if "node.name" not in arguments else []
        had = len(commits(alpha))
        assert_refused(shell.run("peer", *arguments.split(), *own, before=before), code, words)
        until(lambda: len(commits(alpha)) > had + 1, within_s=20, what="alpha going on")

    listen = f'--set node.listen="{address}"'
    refused(2, f"cannot listen on {address}", "in use", "0", arguments=f"run.toml --new {listen}")
    taken = f"node.name=alpha --set node.directory={alpha}"
    refused(2, "is in use by a running peer", "stop it", arguments=f"--join {token} --set {taken}")
    other = f"run.toml --join {token} --set run.data.batch=8 --set run.seed=5"
    refused(3, "run.data.batch is 8 here and 4 in the run", "leave [run] out", arguments=other)
    refused(
        3,
        "protocol",
        "same lowcomm version",
        arguments=f"--join {token}",
        before=OTHER_PROTOCOL,
    )
    refused(2, "node.corpus", "folder", arguments=f"--join {token}")
    corpus = tmp_path / "other"
    shutil.copytree(tmp_path / "text", corpus)
    (corpus / "3.py").write_text("x = 1", encoding="utf-8")
    refused(3, "text is not the run's", arguments=f"--join {token} --set node.corpus={corpus}")
    nobody = f"--join {new_token(alpha, advertise='127.0.0.1:1')}"
    refused(3, "no peer of the run answers at 127.0.0.1:1", arguments=nobody, before=IMPATIENT)
    assert not of(Lost, alpha)

    told = shell.run("status", str(alpha), "--json")
    (answer,) = [json.loads(line) for line in told.out.splitlines()]
    assert (answer["name"], answer["address"]) == ("alpha", address)
    assert list(answer["members"].values()) == ["alpha"]
    shell.commands[0].popen.terminate()
    assert shell.commands[0].wait(within_s=10) == 143
