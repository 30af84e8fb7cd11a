"""Real daemons of a run in which only the operator, with the root key, revokes nodes and tokens."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowcomm.reports.events import Lost, Note
from peers.ipc.command_bus import Revoke, ask_daemon
from peers.security.keys import ROOT_KEY, Key
from protocols.state.tokens import decode_token
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import (
    Command,
    commits_until,
    ending,
    of,
    record,
    token_of,
    until,
    write_config,
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PacedShell]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with ending(PacedShell(tmp_path)) as shell:
        yield shell


LIAR = """
from lowcomm.daemon import acts
from protocols.peer import certificates
acts.may_not_ask = certificates.may_not_ask = lambda *_: ""
"""
"""A member that sends forged requests."""
LYING_LEADER = f"""{LIAR}
from protocols.state import entry_validation
entry_validation.unproved = lambda *_: ""
"""
"""It would also append them."""


def operated(
    run: PacedShell, directory: Path, *, leader: str = "", member: str = ""
) -> dict[str, Command]:
    """Three nodes, the first two of which run this first; the root key is in a safe place, and not
    on any of them."""
    file = directory / "run.toml"
    closed = file.read_text("utf-8").replace("[run]", '[run]\nrevocations = "operators"', 1)
    file.write_text(closed, "utf-8")
    nodes = {"alpha": run.node("alpha", "--new", before=leader)}
    word = token_of(directory / "alpha", uses=3)
    commits_until(directory / "alpha", 1)
    for name, before in (("beta", member), ("gamma", "")):
        nodes[name] = run.node(name, "--join", word, before=before)
    counts_together(directory / "alpha", ["alpha", "beta", "gamma"])
    (directory / "safe").mkdir()
    shutil.move(directory / "alpha" / ROOT_KEY, directory / "safe" / ROOT_KEY)
    return nodes


def acts(run: PacedShell, node: str) -> list[dict[str, Any]]:
    told = run.run("audit", node, "--json")
    assert told.popen.returncode == 0, told.err
    return [json.loads(line) for line in told.out.splitlines()]


@pytest.mark.long
@pytest.mark.deadline(180)
def test_only_the_root_key_revokes_and_through_any_node(run: PacedShell, tmp_path: Path) -> None:
    nodes = operated(run, tmp_path)
    gamma = record(tmp_path / "gamma")["peer"]
    # A voter, and the leader, have no right to it.
    for name in ("beta", "alpha"):
        told = run.run("revoke", name, "gamma", "--why", "a lie", "--force")
        assert told.popen.returncode == 2, told.out
        (line,) = told.err.splitlines()
        assert re.match(
            rf"lowcomm: {gamma} cannot be revoked: this run takes revocations of its operator only "
            r"\(run.revocations\): give --key FILE with the root key of the run \(root-key.pem\)",
            line,
        )
    # Nor has a forged signature.
    bus = str(record(tmp_path / "beta")["bus"])
    forged = Revoke(what="gamma", token=False, why="", force=True, again=False, signature="00" * 64)
    assert "has not signed" in str(ask_daemon(bus, forged, timeout_s=5.0)["error"])
    counts_together(tmp_path / "alpha", ["alpha", "beta", "gamma"])
    assert acts(run, "beta") == []
    # The operator hands its order to a node that does not lead.
    key = str(tmp_path / "safe" / ROOT_KEY)
    told = run.run("revoke", "beta", "gamma", "--key", key, "--why", "the laptop was stolen")
    assert told.popen.returncode == 0, told.err
    assert told.out == f"{gamma} is shut out: its certificate is revoked\n"
    assert nodes["gamma"].wait(within_s=20) == 3, nodes["gamma"].err
    assert f"revoked by the root key, at {record(tmp_path / 'beta')['peer']}" in nodes["gamma"].err
    counts_together(tmp_path / "alpha", ["alpha", "beta"])
    assert [x.member for x in of(Lost, tmp_path / "alpha")] == [gamma]
    assert [x for x in of(Note, tmp_path / "alpha") if "by the root key" in x.text]
    (one,) = acts(run, "alpha")
    assert (one["act"], one["subject"], one["by"]) == ("node revoked", gamma, "root key")
    assert (one["why"], one["signed"]) == ("the laptop was stolen", True)
    table = run.run("audit", str(tmp_path)).out
    assert "the laptop was stolen" in table
    assert "root key" in table


@pytest.mark.deadline(120)
def test_a_forged_request_of_a_member_changes_nothing(run: PacedShell, tmp_path: Path) -> None:
    """Its daemon sends it to the leader, which refuses it."""
    operated(run, tmp_path, member=LIAR)
    told = run.run("revoke", "beta", "gamma", "--force")
    assert told.popen.returncode == 2, told.out
    assert "this run takes revocations of its operator only" in told.err
    counts_together(tmp_path / "alpha", ["alpha", "beta", "gamma"])
    assert [acts(run, name) for name in ("alpha", "beta", "gamma")] == [[], [], []]


@pytest.mark.long
@pytest.mark.deadline(150)
def test_a_leader_that_lies_gets_no_majority_for_it(run: PacedShell, tmp_path: Path) -> None:
    """Neither the other voter nor the victim acknowledges its entry."""
    nodes = operated(run, tmp_path, leader=LYING_LEADER)
    told = run.start("revoke", "alpha", "gamma", "--force")
    until(
        lambda: all(map(refuses, (tmp_path / "beta", tmp_path / "gamma"))),
        within_s=30,
        what="a refusal",
    )
    assert told.wait(within_s=40) != 0
    assert [acts(run, name) for name in ("alpha", "beta", "gamma")] == [[], [], []]
    assert nodes["gamma"].popen.poll() is None


def refuses(directory: Path) -> bool:
    text = "this run takes revocations of its operator only"
    return any(text in note.text for note in of(Note, directory))


@pytest.mark.long
@pytest.mark.deadline(180)
def test_an_added_operator_admits_nodes_and_revokes_its_token_with_them(
    run: PacedShell, tmp_path: Path
) -> None:
    """At a node that is not the founder; the root key is in a safe place after the first act."""
    file = tmp_path / "run.toml"
    closed = '[run]\nrevocations = "operators"\ntokens = "operators"'
    file.write_text(file.read_text("utf-8").replace("[run]", closed, 1), "utf-8")
    nodes = {"alpha": run.node("alpha", "--new")}
    nodes["beta"] = run.node("beta", "--join", token_of(tmp_path / "alpha"))
    counts_together(tmp_path / "alpha", ["alpha", "beta"])
    alice = str(tmp_path / "alice.pem")
    key = run.run("operator", "new", alice).out.strip()
    refused = run.run("token", "beta", "--key", alice)
    assert refused.popen.returncode == 2, refused.out
    assert "is the key of no operator of this run" in refused.err
    added = run.run("operator", "add", "alpha", key)
    assert added.popen.returncode == 0, added.err
    (tmp_path / "safe").mkdir()
    root = shutil.move(tmp_path / "alpha" / ROOT_KEY, tmp_path / "safe" / ROOT_KEY)

    def made() -> str:
        told = run.run("token", "beta", "--uses", "2", "--key", alice)
        return told.out.strip() if told.popen.returncode == 0 else ""

    word, unspent = (until(made, within_s=20, what="a token") for _ in range(2))
    for name in ("gamma", "delta"):
        nodes[name] = run.node(name, "--join", word)
        counts_together(tmp_path / "beta", list(nodes))
    table = run.run("token", "list", "gamma").out
    assert f"operator {key[:8]}" in table
    number = decode_token(word).number
    told = run.run("revoke", "beta", "--token", number[:8], "--nodes", "--key", alice)
    assert told.popen.returncode == 0, told.err
    assert told.out.count("is shut out: its certificate is revoked") == 2
    assert [nodes[name].wait(within_s=20) for name in ("gamma", "delta")] == [3, 3]
    removed = run.run("operator", "remove", "beta", key[:8], "--key", str(root))
    assert removed.popen.returncode == 0, removed.err
    late = run.node("late", "--join", unspent)
    assert late.wait(within_s=30) == 3, late.err
    assert f"the operator {key[:8]} issued this token, and is none of the run" in late.err
    counts_together(tmp_path / "beta", ["alpha", "beta"])


@pytest.mark.deadline(90)
def test_what_the_root_key_cannot_sign_is_one_line(run: PacedShell, tmp_path: Path) -> None:
    run.node("alpha", "--new")
    commits_until(tmp_path / "alpha", 1)
    (tmp_path / "other").mkdir()
    Key.make().save(tmp_path / "other" / ROOT_KEY)
    for key, words in (
        ("nowhere.pem", "--key nowhere.pem does not exist"),
        (f"other/{ROOT_KEY}", f"--key other/{ROOT_KEY} is the key of no operator of this run"),
    ):
        told = run.run("revoke", "alpha", "alpha", "--key", key)
        assert told.popen.returncode == 2, told.out
        (line,) = told.err.splitlines()
        assert words in line
