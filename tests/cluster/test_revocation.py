"""Real daemons, one of which is shut out: its certificate counts no more."""

import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lowcomm.reports.events import Commit, Lost, Note
from peers.ipc.command_bus import Revoke, ask_daemon
from peers.security.keys import Key
from peers.security.proofs import new_token
from protocols.state.tokens import decode_token, encode_token
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import (
    Command,
    commits_until,
    ending,
    of,
    record,
    token_of,
    write_config,
)

WHY = "this node's certificate was revoked by"
ROOT = Key.make()
ANOTHER_RUNS = encode_token(new_token(ROOT, root=ROOT.public, uses=1, hours=1, addresses=["a:1"]))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PacedShell]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with ending(PacedShell(tmp_path)) as shell:
        yield shell


def three(run: PacedShell, directory: Path) -> dict[str, Command]:
    nodes = {"alpha": run.node("alpha", "--new")}
    word = token_of(directory / "alpha")
    commits_until(directory / "alpha", 1)
    for name in ("beta", "gamma"):
        nodes[name] = run.node(name, "--join", word)
    counts_together(directory / "alpha", ["alpha", "beta", "gamma"])
    return nodes


def last_line(command: Command) -> str:
    return [line for line in command.err.splitlines() if line.startswith("lowcomm: ")][-1]


@pytest.mark.deadline(120)
@pytest.mark.parametrize("victim", [pytest.param("gamma", marks=pytest.mark.long), "alpha"])
def test_who_is_shut_out_ends_and_stays_out_and_the_others_go_on(
    run: PacedShell, tmp_path: Path, victim: str
) -> None:
    """Asked at a node that does not lead; alpha leads."""
    nodes = three(run, tmp_path)
    others = sorted({"alpha", "beta", "gamma"} - {victim})
    peer = record(tmp_path / victim)["peer"]
    told = run.run("revoke", "beta", victim, "--why", "the laptop was stolen")
    assert told.popen.returncode == 0, told.err
    assert told.out == f"{peer} is shut out: its certificate is revoked\n"
    assert nodes[victim].wait(within_s=20) == 3, nodes[victim].err
    assert WHY in last_line(nodes[victim])
    assert "(the laptop was stolen): ask for a new token" in last_line(nodes[victim])
    counts_together(tmp_path / "beta", others)
    assert [x.member for x in of(Lost, tmp_path / "beta")] == [peer]
    assert [x for x in of(Note, tmp_path / "beta") if x.topic == "revoked"]
    # It comes back, and nobody speaks with it.
    again = run.start("resume", victim)
    assert again.wait(within_s=30) == 3, again.err
    assert WHY in last_line(again)
    counts_together(tmp_path / "beta", others)


@pytest.mark.long
@pytest.mark.deadline(120)
def test_two_of_three_voters_at_once_and_the_third_goes_on(run: PacedShell, tmp_path: Path) -> None:
    """Both were shut out before the second one had lost its vote: the run stood still."""
    nodes = three(run, tmp_path)
    bus = str(record(tmp_path / "alpha")["bus"])
    nodes["alpha"].signal(signal.SIGSTOP)  # It reads both at once.
    with ThreadPoolExecutor() as pool:
        for name in ("beta", "gamma"):
            question = Revoke(what=name, token=False, why="", force=False, again=False)
            pool.submit(ask_daemon, bus, question, timeout_s=10.0)
        time.sleep(0.3)
        nodes["alpha"].signal(signal.SIGCONT)
    for name in ("beta", "gamma"):
        told = run.run("revoke", "alpha", name)
        assert told.popen.returncode == 0, told.err
        assert told.out.endswith(" is shut out: its certificate is revoked\n")
    assert [nodes[name].wait(within_s=20) for name in ("beta", "gamma")] == [3, 3]
    counts_together(tmp_path / "alpha", ["alpha"])
    lost = {x.member: x.t for x in of(Lost, tmp_path / "alpha")}
    assert lost.keys() == {str(record(tmp_path / name)["peer"]) for name in ("beta", "gamma")}
    alone = [x.t for x in of(Commit, tmp_path / "alpha") if len(x.roster) == 1]
    after_s = next(t for t in alone if t > max(lost.values())) - min(lost.values())
    print(f"the third one commits {after_s:.3f} s after the first is struck")  # noqa: T201


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.deadline(120)
def test_what_leaves_no_majority_is_refused_but_by_force(run: PacedShell, tmp_path: Path) -> None:
    """gamma hangs, and would be one of two voters: nothing could be decided until it is lost."""
    with (tmp_path / "run.toml").open("a", encoding="utf-8") as file:
        file.write("\n[run.protocol]\nsilence_timeout_min_s = 10.0\n")
    nodes = three(run, tmp_path)
    nodes["gamma"].signal(signal.SIGSTOP)
    time.sleep(2.0)  # Longer than three heartbeats.
    peer = record(tmp_path / "beta")["peer"]
    told = run.run("revoke", "alpha", "beta")
    assert told.popen.returncode == 2, told.out
    (line,) = told.err.splitlines()
    assert line.startswith(f"lowcomm: {peer} cannot be revoked: of the 2 voters that would remain")
    assert "(not gamma)" in line
    assert of(Lost, tmp_path / "alpha") == []
    forced = run.start("revoke", "alpha", "beta", "--force")
    time.sleep(1.0)  # It asks meanwhile.
    nodes["gamma"].signal(signal.SIGCONT)
    assert forced.wait(within_s=30) == 0, forced.err
    assert forced.out == f"{peer} is shut out: its certificate is revoked\n"
    assert nodes["beta"].wait(within_s=20) == 3
    counts_together(tmp_path / "alpha", ["alpha", "gamma"])


@pytest.mark.long
@pytest.mark.deadline(120)
def test_who_was_not_there_hears_it_from_the_others(run: PacedShell, tmp_path: Path) -> None:
    three(run, tmp_path)
    run.kill(tmp_path / "gamma")
    counts_together(tmp_path / "beta", ["alpha", "beta"])
    told = run.run("revoke", "alpha", "gamma")
    assert told.popen.returncode == 0, told.err
    again = run.start("resume", "gamma")
    assert again.wait(within_s=40) == 3, again.err
    assert WHY in last_line(again)


@pytest.mark.long
@pytest.mark.deadline(90)
def test_a_token_that_leaked_lets_nobody_in_and_who_came_with_it_stays(
    run: PacedShell, tmp_path: Path
) -> None:
    run.node("alpha", "--new")
    leaked = token_of(tmp_path / "alpha")
    commits_until(tmp_path / "alpha", 1)
    run.node("beta", "--join", leaked)
    counts_together(tmp_path / "alpha", ["alpha", "beta"])
    told = run.run("revoke", "beta", leaked, "--why", "it was in a public chat")
    assert told.popen.returncode == 0, told.err
    peer = record(tmp_path / "beta")["peer"]
    assert told.out == f"the token admits no more nodes; nodes that it admitted stay: {peer}\n"
    late = run.node("gamma", "--join", leaked)
    assert late.wait(within_s=30) == 3, late.err
    assert re.search(
        r"this token was revoked by beta\.\w+ \(it was in a public chat\): ask for another one",
        last_line(late),
    )
    run.node("delta", "--join", token_of(tmp_path / "alpha"))
    counts_together(tmp_path / "alpha", ["alpha", "beta", "delta"])


@pytest.mark.long
@pytest.mark.deadline(120)
def test_a_token_is_revoked_with_all_nodes_that_came_by_it(run: PacedShell, tmp_path: Path) -> None:
    nodes = {"alpha": run.node("alpha", "--new")}
    leaked, good = token_of(tmp_path / "alpha"), token_of(tmp_path / "alpha", uses=3)
    number = decode_token(leaked).number
    for name, word in (("beta", leaked), ("gamma", good), ("delta", leaked)):
        nodes[name] = run.node(name, "--join", word)
        counts_together(tmp_path / "alpha", list(nodes))
    listed = {one["number"]: one for one in listing(run, "gamma")}
    assert [one["name"] for one in listed[number]["nodes"]] == ["beta", "delta"]
    assert (listed[number]["uses"], listed[number]["role"]) == (16, "member")
    assert [one["founder"] for one in listed.values()].count(True) == 1
    table = run.run("token", "list", str(tmp_path)).out
    for words in (number[:8], "root key", "2/16", "members", "1/3", "founder"):
        assert words in table
    told = run.run("revoke", "alpha", "--token", number[:8], "--nodes", "--why", "leaked")
    assert told.popen.returncode == 0, told.err
    assert told.out.count("is shut out: its certificate is revoked") == 2
    assert [nodes[name].wait(within_s=20) for name in ("beta", "delta")] == [3, 3]
    counts_together(tmp_path / "alpha", ["alpha", "gamma"])
    (one,) = [one for one in listing(run, "alpha") if one["number"] == number]
    assert one["revoked"]
    assert all(node["revoked"] for node in one["nodes"])


def listing(run: PacedShell, node: str) -> list[dict[str, Any]]:
    told = run.run("token", "list", node, "--json")
    assert told.popen.returncode == 0, told.err
    return [json.loads(line) for line in told.out.splitlines()]


@pytest.mark.deadline(90)
def test_what_cannot_be_revoked_is_one_line(run: PacedShell, tmp_path: Path) -> None:
    run.node("alpha", "--new")
    commits_until(tmp_path / "alpha", 1)
    for arguments, words in (
        (("alpha", "nobody"), "no peer of the run has the name or id nobody"),
        (("alpha", "alpha"), "it is the only voter"),
        (("elsewhere", "alpha"), "no node runs in elsewhere"),
        (("alpha", "lc2-half"), "is no join token, or not all of one"),
        (("alpha", ANOTHER_RUNS), "this is no token of this run"),
    ):
        told = run.run("revoke", *arguments)
        assert told.popen.returncode == 2
        (line,) = told.err.splitlines()
        assert re.match(rf"lowcomm: .*{re.escape(words)}", line)
