"""A daemon that the program starts: what becomes of its answer."""

import json
import os
import subprocess
import sys

import pytest

from lowcomm.training import own_daemon
from lowcomm.training.launched_ranks import LaunchedRanks
from lowcomm.training.own_daemon import OwnDaemon, start_daemon
from peers.processes import HANDOVER, TOKEN_VARIABLE
from protocols.types import ConfigError, LowcommError, RefusedError

ANSWERING = f"""
import os, sys
pipe, pid, ranks, launcher = os.environ["{HANDOVER}"].split(":")
assert (ranks, launcher) == ("1", "0")
assert int(pid) == os.getppid() and os.getsid(0) == os.getpid()
os.write(int(pipe), sys.argv[1].encode())
sys.exit(int(sys.argv[2]))
"""
ENVIRONMENT = {
    "LOWCOMM_SOCKET": "/s",
    "LOWCOMM_ATTEMPT": "0",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
}


def answering(text: str, *, code: int = 0) -> OwnDaemon:
    argv = [sys.executable, "-c", ANSWERING, text, str(code)]
    return own_daemon._start(argv, os.environ)


def test_the_environment_is_that_of_the_rank() -> None:
    given = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "PET_MASTER_PORT": "1"}
    daemon = answering(json.dumps({"environment": given}) + "\n", code=7)
    assert daemon.environment() == ENVIRONMENT
    assert daemon.exit_code() == 7


@pytest.mark.parametrize(("code", "kind"), [(2, ConfigError), (3, RefusedError), (4, LowcommError)])
def test_an_error_of_the_daemon_is_one_of_the_program(code: int, kind: type[Exception]) -> None:
    daemon = answering(f'{{"error": "the port is in use", "code": {code}}}\n', code=code)
    with pytest.raises(kind, match=r"^the port is in use$") as raised:
        daemon.environment()
    assert type(raised.value) is kind


def test_a_daemon_that_ends_without_an_answer_is_told() -> None:
    with pytest.raises(LowcommError, match=r"has ended \(code 9\)"):
        answering("", code=9).environment()


def test_a_token_is_no_argument_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    launched = LaunchedRanks(2, 0, b"\0", launcher=os.getpid())

    def start(argv: list[str], environment: dict[str, str], **_: object) -> OwnDaemon:
        started.append((argv, environment))
        return OwnDaemon(subprocess.Popen(["true"]), 0)

    monkeypatch.setattr(own_daemon, "_start", start)
    start_daemon("run.toml", join="lowcomm:secret", overrides=["node.name=beta"]).exit_code()
    monkeypatch.setenv(TOKEN_VARIABLE, "lowcomm:unused")
    start_daemon(None, join="@file", overrides=()).exit_code()
    assert TOKEN_VARIABLE not in os.environ, "children would inherit it"
    monkeypatch.setenv(TOKEN_VARIABLE, "lowcomm:other")
    start_daemon(None, join="", overrides=()).exit_code()
    assert TOKEN_VARIABLE not in os.environ
    start_daemon("run.toml", join="", overrides=(), launched=launched).exit_code()
    lines = [argv[argv.index("peer") : argv.index("--")] for argv, _ in started]
    assert lines[0] == ["peer", "run.toml", "--set", "node.name=beta"]
    assert lines[1:3] == [["peer", "--join", "@file"], ["peer"]]
    assert lines[3] == ["peer", "run.toml", "--new"]
    assert started[3][0][started[3][0].index("--") + 1 :] == launched.command
    tokens = [environment.get(TOKEN_VARIABLE) for _, environment in started]
    assert tokens == ["lowcomm:secret", None, "lowcomm:other", None]


def test_ranks_of_a_launcher_keep_its_variables_and_resume_by_its_command() -> None:
    given = {**ENVIRONMENT, "MASTER_PORT": "7"}
    launched = LaunchedRanks(2, 0, b"\0", launcher=os.getpid())
    code = ANSWERING.replace('("1", "0")', f'("2", "{os.getpid()}")')
    argv = [sys.executable, "-c", code, json.dumps({"environment": given}) + "\n", "0"]
    daemon = own_daemon._start(argv, os.environ, launched=launched)
    assert daemon.environment() == {"LOWCOMM_SOCKET": "/s", "LOWCOMM_ATTEMPT": "0"}
    assert daemon.exit_code() == 0
