"""Real daemons of a run that people steer: pauses, removed nodes, changed keys, more operators."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowcomm.reports.events import Note
from peers.ipc.command_bus import Steer, ask_daemon
from peers.security.keys import ROOT_KEY
from tests.cluster.paced_shell import PacedShell, counts_together
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

STILL_S = 3.0
"""A round takes a fraction of it."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PacedShell]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with ending(PacedShell(tmp_path)) as shell:
        yield shell


def steered_run(
    run: PacedShell, directory: Path, *names: str, only_operators: bool = True
) -> dict[str, Command]:
    """alpha and nodes with these names; the root key is in a safe place."""
    file = directory / "run.toml"
    if only_operators:
        text = file.read_text("utf-8").replace("[run]", '[run]\nsteering = "operators"', 1)
        file.write_text(text, "utf-8")
    nodes = {"alpha": run.node("alpha", "--new")}
    word = token_of(directory / "alpha")
    commits_until(directory / "alpha", 1)
    for name in names:
        nodes[name] = run.node(name, "--join", word)
    counts_together(directory / "alpha", ["alpha", *names])
    (directory / "safe").mkdir()
    shutil.move(directory / "alpha" / ROOT_KEY, directory / "safe" / ROOT_KEY)
    return nodes


def asked(run: PacedShell, *arguments: str) -> str:
    told = run.run(*arguments)
    assert told.popen.returncode == 0, told.err
    return told.out


def refused(run: PacedShell, *arguments: str) -> str:
    told = run.run(*arguments)
    assert told.popen.returncode == 2, told.out
    (line,) = told.err.splitlines()
    return line


def acts(run: PacedShell, node: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in asked(run, "audit", node, "--json").splitlines()]


def stands_still(run: PacedShell, directory: Path, *names: str) -> None:
    """The round under way ends; then these wait for the run to go on, and no round is committed."""

    def wait() -> bool:
        told = [json.loads(asked(run, "status", name, "--json")) for name in names]
        return all("the run is paused" in one["reason"] for one in told) and all(
            one["state"] == "waiting" for one in told
        )

    until(wait, within_s=30, what="a pause")
    before = commits(directory / names[0])
    time.sleep(STILL_S)
    assert commits(directory / names[0]) == before


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(240)
def test_a_pause_outlives_its_leader_and_a_joiner_may_come(run: PacedShell, tmp_path: Path) -> None:
    nodes = steered_run(run, tmp_path, "beta", "gamma")
    safe = str(tmp_path / "safe" / ROOT_KEY)
    assert "of its operator only (run.steering)" in refused(run, "pause", "beta")
    told = asked(run, "pause", "beta", "--why", "noon", "--key", safe)
    assert (
        told
        == f"the run is paused, by the root key, at {record(tmp_path / 'beta')['peer']} (noon)\n"
    )
    stands_still(run, tmp_path, "beta", "alpha", "gamma")
    assert [x for x in of(Note, tmp_path / "gamma") if x.text == told.strip()]
    assert "since 20" in asked(run, "status", "beta")
    assert "paused already" in refused(run, "pause", "alpha", "--key", safe)
    # The leader dies, another node joins, and the leader comes back.
    run.kill(tmp_path / "alpha")
    del nodes["alpha"]
    run.node("delta", "--join", token_of(tmp_path / "beta"))
    stands_still(run, tmp_path, "beta", "gamma", "delta")
    run.start("resume", "alpha")
    stands_still(run, tmp_path, "beta", "alpha")
    # A captured act counts once.
    (pause,) = acts(run, "beta")
    asked(run, "continue", "gamma", "--key", safe)
    counts_together(tmp_path / "beta", ["alpha", "beta", "gamma", "delta"])
    assert pause["act"] == "pause"
    assert [act["act"] for act in acts(run, "delta")] == ["pause", "continue"]
    assert abs(pause["time"] - time.time()) < 600
    forged = Steer(
        what="pause",
        subject="",
        value="",
        number=3,
        lineage="0" * 16,
        why="",
        force=True,
        again=False,
        signature="00" * 64,
    )
    bus = str(record(tmp_path / "beta")["bus"])
    assert "ask again" in str(ask_daemon(bus, forged, timeout_s=5.0)["error"])


@pytest.mark.long
@pytest.mark.deadline(180)
def test_a_removed_node_comes_back_with_its_next_start(run: PacedShell, tmp_path: Path) -> None:
    """alpha leads, votes and hands over first. Voters may ask for it here."""
    nodes = steered_run(run, tmp_path, "beta", "gamma", only_operators=False)
    alpha = record(tmp_path / "alpha")["peer"]
    told = asked(run, "kick", "beta", "alpha", "--why", "too slow")
    assert told.startswith(f"{alpha} is removed until it is started again, by beta.")
    assert nodes["alpha"].wait(within_s=20) == 3, nodes["alpha"].err
    assert "removed from the run by beta." in nodes["alpha"].err
    assert "`lowcomm resume DIRECTORY` brings it back" in nodes["alpha"].err
    counts_together(tmp_path / "beta", ["beta", "gamma"])
    run.start("resume", "alpha")
    counts_together(tmp_path / "beta", ["alpha", "beta", "gamma"])
    assert "no peer of the run has the name" in refused(run, "kick", "beta", "nobody")
    (one,) = acts(run, "alpha")
    assert (one["act"], one["subject"], one["why"]) == ("kick", alpha, "too slow")
    assert one["by"] == record(tmp_path / "beta")["peer"]


@pytest.mark.long
@pytest.mark.deadline(180)
def test_a_run_ends_earlier_and_another_operator_may_ask_for_it(
    run: PacedShell, tmp_path: Path
) -> None:
    nodes = steered_run(run, tmp_path, "beta")
    safe = str(tmp_path / "safe" / ROOT_KEY)
    alice = asked(run, "operator", "new", "alice.pem").strip()
    assert "alice.pem exists already" in refused(run, "operator", "new", "alice.pem")
    more = ("set", "beta", f"run.outer_steps={max(commits(tmp_path / 'beta')) + 400}")
    assert "no operator of this run" in refused(run, *more, "--key", "alice.pem")
    assert "only an operator" in refused(run, "operator", "add", "beta", alice)
    asked(run, "operator", "add", "beta", alice, "--key", safe)
    asked(run, *more, "--why", "enough", "--key", "alice.pem")
    assert alice in asked(run, "operator", "list", "alpha")
    for setting, words in (
        ("run.seed=3", "run.seed cannot change while the run is under way"),
        ("run.outer_steps=1", "the round under way"),
        ("run.protocol.quorum=x", "a whole number above 0"),
    ):
        assert words in refused(run, "set", "alpha", setting, "--key", "alice.pem")
    asked(run, "operator", "remove", "beta", alice[:8], "--key", safe)
    assert "no operator of this run" in refused(run, "pause", "beta", "--key", "alice.pem")
    status = json.loads(asked(run, "status", "alpha", "--json"))
    assert f"run.outer_steps={status['outer_steps']}" == more[2]
    found = [(act["act"], act["by"]) for act in acts(run, "beta")]
    assert found == [
        ("add operator", "root key"),
        ("set", f"operator {alice[:8]}"),
        ("remove operator", "root key"),
    ]
    last = max(commits(tmp_path / "beta")) + 5
    asked(run, "set", "alpha", f"run.outer_steps={last + 40}", "--key", safe)
    assert [nodes[name].wait(within_s=60) for name in nodes] == [0, 0]
    assert max(commits(tmp_path / "beta")) == last + 40
