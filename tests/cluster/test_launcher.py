"""What a launcher of several peers promises: nothing outlives it, and `lowcomm demo` shows it."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Finished
from tests.cluster.running import (
    Shell,
    commits_until,
    marked_processes,
    most_until_listening_s,
    new_shell,
    of,
    slowness,
    until,
    write_config,
)

PROGRAM = """
from pathlib import Path
from lowcomm.training.attach import attach
from sims.paced.rank import PacedTrainer, RankSpeed

peer = attach()
Path(peer.node.name).write_text("trained here")
PacedTrainer(peer, RankSpeed(step_s=0.001, elements=6001)).train()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with new_shell(tmp_path) as made:
        yield made


@pytest.mark.long
@pytest.mark.deadline(60)
def test_nothing_outlives_a_killed_launcher(shell: Shell, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=2, rounds=100_000)
    run_dir = tmp_path / "runs" / "tiny"
    launcher = shell.start("sim", str(config), "--ranks", "2,1")
    commits_until(run_dir / "beta", 2)

    told = shell.run("status", "runs/tiny", "--json")
    answers = {(answer := json.loads(line))["name"]: answer for line in told.out.splitlines()}
    assert set(answers) == {"alpha", "beta"}
    assert answers["alpha"]["ranks"] == 2
    assert {len(answer["members"]) for answer in answers.values()} == {2}
    assert all(answer["outer_step"] >= 2 for answer in answers.values())
    table = shell.run("status", "runs/tiny").out
    assert "100000" in table
    assert answers["beta"]["address"] in table

    second = shell.run("sim", str(config))  # It would move the run's directory aside.
    assert second.popen.returncode == 2
    assert "still goes on" in second.err
    again = shell.run("resume", "runs/tiny")
    assert again.popen.returncode == 2
    assert "still goes on" in again.err

    assert len(marked_processes()) >= 8  # A launcher, two daemons, two zygotes, three ranks.
    launcher.signal(signal.SIGKILL)
    until(lambda: not marked_processes(), within_s=5, what="every process gone")
    table = shell.run("status", "runs/tiny")
    assert table.popen.returncode == 0
    assert "no daemon of this run answers" in table.out


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(60)
def test_a_run_goes_on_when_one_daemon_is_killed(shell: Shell, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=2, rounds=20, inner=10)
    run_dir = tmp_path / "runs" / "tiny"
    launcher = shell.start("sim", str(config))
    commits_until(run_dir / "beta", 2)
    shell.kill(run_dir / "beta")
    assert launcher.wait(within_s=40) == 0, launcher.err
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    assert summary["outer_steps"] == 20
    assert {peer["name"]: peer["end"] for peer in summary["peers"]} == {
        "alpha": "finished",
        "beta": "lost",
    }


@pytest.mark.deadline(60)
def test_simulated_nodes_run_the_users_program(shell: Shell, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=3, rounds=4)
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    launcher = shell.run(
        "sim", str(config), "--peers", "3", "--", sys.executable, "train.py", within_s=50
    )
    assert launcher.popen.returncode == 0, launcher.err
    names = ("alpha", "beta", "gamma")
    assert all((tmp_path / name).read_text() == "trained here" for name in names)
    assert all(of(Finished, tmp_path / "runs" / "tiny" / name) for name in names)
    assert marked_processes() == {}


@pytest.mark.long
@pytest.mark.deadline(30)
def test_a_program_that_cannot_be_run_ends_the_simulation(shell: Shell, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=2, rounds=4)
    launcher = shell.run("sim", str(config), "--peers", "2", "--", "./trian")
    assert launcher.popen.returncode == 4
    assert "cannot run ./trian: No such file or directory" in launcher.err
    assert marked_processes() == {}


@pytest.mark.long
@pytest.mark.deadline(30)
def test_a_peer_that_cannot_start_ends_the_run(shell: Shell, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=2, rounds=60)
    refused = shell.run("sim", str(config), "--set", "node.memory_max_bytes=1000")
    assert refused.popen.returncode == 4
    assert "memory" in refused.err
    assert marked_processes() == {}


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.deadline(1200)
def test_the_demo_keeps_its_promises(shell: Shell, tmp_path: Path) -> None:
    slow = slowness()
    demo = shell.run("demo", "--directory", "demo", within_s=min(260 * slow, 1100))
    assert demo.popen.returncode == 0, demo.err
    run_dir = tmp_path / "demo"
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    assert summary["finished"]
    assert summary["outer_steps"] == summary["config"]["outer_steps"] == 24
    assert summary["eval_loss"] <= 1.80
    assert summary["kill_to_next_commit_s"] <= 1.5
    assert summary["join_to_member_s"] <= 8
    assert summary["join_to_contribution_s"] is not None
    assert 0 < summary["bytes_sent"] < summary["bytes_allreduce_equivalent"]
    assert summary["wall_s"] <= 240 * slow
    peers = {peer["name"]: peer for peer in summary["peers"]}
    assert {name: peer["end"] for name, peer in peers.items()} == {
        "alpha": "lost",
        "beta": "finished",
        "gamma": "killed",
        "delta": "finished",
    }
    live = [peer for peer in peers.values() if peer["alive"]]
    assert len({peer["state_digest"] for peer in live}) == 1
    assert all(peer["rounds_counted"] > 0 for peer in live)
    assert max(peer["listen_cpu_s"] for peer in peers.values()) < most_until_listening_s()
    report = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "<svg" in report
    assert not any(word in report for word in ("http://", "https://", "src=", "<link", "@import"))
    assert marked_processes() == {}
