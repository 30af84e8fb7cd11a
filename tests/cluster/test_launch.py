"""`lowcomm launch` on hosts that are local processes, and over ssh."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lowcomm.launching.supervisor import read_state, supervisor_pid
from lowcomm.reports.events import Checkpoint, Commit, Left
from peers.processes.processes import dying_with_us, own_module
from sims.cluster.process_tree import descendants
from sims.paced.cluster import paced_command
from tests.cluster import ssh_server
from tests.cluster.paced_shell import PACE, counts_together
from tests.cluster.running import (
    Shell,
    commits,
    commits_until,
    marked_processes,
    new_shell,
    of,
    record,
    until,
    write_config,
)

NAMES = ("alpha", "beta", "gamma")
NAMES_SSH = ("gpu2", "gpu1")
"""In the order of their end."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """One that ends; so do the supervisors, with which their peers die."""
    with new_shell(tmp_path) as shell:
        try:
            yield shell
        finally:
            for directory in (*tmp_path.glob("runs/tiny/*"), *tmp_path.glob("home/runs/tiny/*")):
                kill(supervisor_pid(directory))


def kill(pid: int) -> None:
    """SIGKILL a process that this test has started, if it still runs."""
    if pid in marked_processes():
        os.kill(pid, signal.SIGKILL)


def write_hosts(directory: Path, *hosts: str, more: str = "") -> None:
    (directory / "hosts.toml").write_text(f"{more}hosts = {json.dumps(hosts)}\n", encoding="utf-8")


def argument_lists() -> str:
    """The command lines of all processes of this test."""
    return "\n".join(marked_processes().values())


def state_of(directory: Path) -> str:
    state = read_state(directory)
    return state.state if state is not None else ""


@pytest.mark.long
@pytest.mark.deadline(120)
def test_a_launched_run_goes_on_without_its_command_and_outlives_a_death(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=3, rounds=1_000_000)
    write_hosts(tmp_path, *(f"local name={name}" for name in NAMES))
    run = tmp_path / "runs" / "tiny"
    alpha, beta, gamma = (run / name for name in NAMES)
    started = shell.run("launch", "--detach", "--", *paced_command(PACE), within_s=60)
    assert started.popen.returncode == 0, started.err
    assert [line.split()[0] for line in started.out.splitlines()[:1]] == ["alpha"]
    token = (beta / "token").read_text(encoding="utf-8").strip()
    assert token not in argument_lists() + started.out + started.err
    counts_together(alpha, NAMES)
    # The second view shows what the first command started, and its end ends no node.
    view = shell.start("launch", "--attach")
    before = int(record(beta)["pid"])
    shell.kill(beta)
    until(lambda: "restart 1 of 10" in view.out, within_s=20, what="shown")
    until(lambda: record(beta)["pid"] != before, within_s=20, what="a new daemon")
    view.signal(signal.SIGINT)
    assert view.wait(within_s=10) == 0, view.err
    assert "the nodes go on" in view.out
    counts_together(alpha, NAMES)
    last = max(commits(alpha)) + 10
    assert shell.run("set", str(alpha), f"run.outer_steps={last}").popen.returncode == 0
    for directory in (alpha, beta, gamma):
        until(lambda path=directory: state_of(path) == "ended", within_s=60, what="finished")
    assert {state.code for path in (alpha, beta, gamma) if (state := read_state(path))} == {0}
    again = shell.run("launch", within_s=60)
    assert again.popen.returncode == 0, again.err
    assert "the run is finished" in again.out
    assert not [line for line in marked_processes().values() if "launching" in line]


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(240)
def test_stop_lets_the_nodes_leave_in_order_and_launch_brings_them_back(
    shell: Shell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=2, rounds=1_000_000)
    write_hosts(tmp_path, "local name=alpha", "local name=beta")
    alpha, beta = (tmp_path / "runs" / "tiny" / name for name in NAMES[:2])
    program = ("--", *paced_command(PACE))
    view = shell.start("launch", *program)
    counts_together(alpha, NAMES[:2])
    stopped = shell.run("stop", within_s=60)
    assert stopped.popen.returncode == 0, stopped.err
    assert stopped.out.splitlines() == [
        "beta ended: it was told to leave",
        "alpha ended: it was told to leave",
    ]
    assert [event.member_name for event in of(Left, alpha)] == ["beta"]
    assert all(of(Checkpoint, directory) for directory in (alpha, beta))
    assert view.wait(within_s=20) == 143, view.err
    assert "alpha has ended with 143: it was told to leave" in view.out
    # All that they started has ended.
    assert not [line for line in marked_processes().values() if "launching" in line]
    since = max(event.round for event in of(Commit, alpha))
    again = shell.run("launch", "--detach", *program, within_s=60)
    assert again.popen.returncode == 0, again.err
    commits_until(alpha, since + 3)
    counts_together(alpha, NAMES[:2])
    # Both are left alone if they run already.
    pids = [record(directory)["pid"] for directory in (alpha, beta)]
    again = shell.run("launch", "--detach", *program, within_s=60)
    assert again.popen.returncode == 0, again.err
    assert [record(directory)["pid"] for directory in (alpha, beta)] == pids
    # A supervisor that is killed takes its peer with it, and a view that sees it starts it again.
    view = shell.start("launch", "--attach")
    until(lambda: descendants(view.pid), within_s=20, what="watched")
    killed = supervisor_pid(beta)
    kill(killed)
    until(lambda: supervisor_pid(beta) != killed, within_s=20, what="a new supervisor")
    counts_together(alpha, NAMES[:2])
    assert shell.run("stop", within_s=60).popen.returncode == 0


def test_nothing_starts_while_a_host_is_not_fit(shell: Shell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=2, rounds=1)
    write_hosts(tmp_path, "local name=a", "local name=b iface=nowhere0", "local name=c python=/no")
    refused = shell.run("launch", "--detach")
    assert refused.popen.returncode == 2
    assert "the interface nowhere0 has no IPv4 address" in " ".join(refused.out.split())
    assert "/no cannot be started: No such file" in " ".join(refused.out.split())
    assert refused.err == (
        "lowcomm: 2 problems, nothing was started: mend this, and repeat the command\n"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(240)
def test_nodes_that_ssh_has_started_outlive_its_connection(shell: Shell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=2, rounds=1_000_000)
    own = f"python={sys.executable}"
    write_hosts(tmp_path, f"gpu1 advertise=127.0.0.1 {own}", f"gpu2 ranks=2 {own}")
    config = ssh_server.write_keys(tmp_path)
    server = shell.launch([sys.executable, ssh_server.__file__, str(tmp_path)], os.environ)
    port = until(lambda: server.out.partition("\n")[0], within_s=20, what="an ssh server")
    config.write_text(config.read_text(encoding="utf-8").replace("PORT", port), encoding="utf-8")
    by_ssh = ("--ssh-config", str(config))
    program = ("--", *paced_command(PACE))
    started = shell.run("launch", "--detach", *by_ssh, *program, within_s=60)
    assert started.popen.returncode == 0, started.err
    gpu1, gpu2 = (tmp_path / "home" / "runs" / "tiny" / name for name in ("gpu1", "gpu2"))
    assert (gpu2 / "token").read_text(encoding="utf-8").strip() not in argument_lists()
    counts_together(gpu1, ("gpu1", "gpu2"))
    assert len([line for line in argument_lists().splitlines() if "sims.paced.rank" in line]) >= 3
    stopped = shell.run("stop", *by_ssh, within_s=60)
    assert stopped.out.splitlines() == [f"{name} ended: it was told to leave" for name in NAMES_SSH]
    # Its key has changed: nothing is started there.
    (tmp_path / "known_hosts").write_text("", encoding="utf-8")
    refused = shell.run("launch", *by_ssh, within_s=60)
    assert refused.popen.returncode == 2
    assert "its host key is not in known_hosts" in " ".join(refused.out.split())


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(120)
def test_ctrl_c_at_a_terminal_asks_whether_to_stop(shell: Shell, tmp_path: Path) -> None:
    write_config(tmp_path, peers=1, rounds=1_000_000)
    write_hosts(tmp_path, "local name=alpha")
    alpha, shown = tmp_path / "runs" / "tiny" / "alpha", bytearray()
    master, slave = os.openpty()
    os.set_blocking(master, False)

    def shows(text: str) -> bool:
        with suppress(BlockingIOError):
            shown.extend(os.read(master, 1 << 16))
        return text.encode() in shown

    argv = [*own_module("lowcomm.cli.main"), "launch", "--", *paced_command(PACE)]
    view = subprocess.Popen(
        dying_with_us(argv),
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
    )
    try:
        until(lambda: shows("training"), within_s=40, what="a live view")
        for answer in ("c", "s"):
            shown.clear()
            view.send_signal(signal.SIGINT)
            until(lambda: shows("[d/s/c]"), within_s=20, what="a question")
            since = max(commits(alpha), default=0)
            os.write(master, f"{answer}\n".encode())
            if answer == "c":
                commits_until(alpha, since + 2)
                until(lambda: shows("training"), within_s=20, what="the view again")
        until(lambda: shows("alpha ended: it was told to leave"), within_s=40, what="stopped")
        assert view.wait(20) == 0
    finally:
        view.kill()
        view.wait(10)
        os.close(master)
        os.close(slave)
    assert state_of(alpha) == "ended"
