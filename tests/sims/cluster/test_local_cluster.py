"""A cluster of processes: how it starts and stops them, and what it remembers."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from lowcomm.startup.identity import read_record
from protocols.types.errors import LowcommError
from sims.cluster.local_cluster import LOG, PLAN, LocalCluster, LocalNode, read_plan

RUN = """
[run]
peers_min = 2
[run.data]
source = "files"
[node]
corpus = "nowhere"
"""


async def ended(node: LocalNode) -> int:
    async with asyncio.timeout(20):
        return await node.child.wait()


@pytest.mark.asyncio
async def test_a_node_that_ends_before_it_listens_has_no_address(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "run") as cluster:
        node = cluster.start_node("alpha", ["peer", "nowhere.toml", "--new"])
        assert await cluster.token_of(node) == ""
        assert await ended(node) == 2
        assert not node.running
        assert not node.killed
        assert await cluster.statuses() == []
    assert "cannot read nowhere.toml" in (node.directory / LOG).read_text()


@pytest.mark.asyncio
async def test_others_are_not_started_if_the_first_one_ends(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "run") as cluster:

        def start(name: str, token: str) -> LocalNode:
            assert token == ""
            return cluster.start_node(name, ["peer", "nowhere.toml", "--new"])

        expected = "^alpha ended at its start: .*cannot read nowhere.toml"
        with pytest.raises(LowcommError, match=expected):
            await cluster.start_all(["alpha", "beta"], start)
        assert [node.name for node in cluster.nodes] == ["alpha"]


@pytest.mark.asyncio
async def test_names_and_directories_are_the_clusters_own(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(RUN)
    odd = tmp_path / 'a "b" = #c'
    async with LocalCluster(odd) as cluster:
        typed = ["node.name=same", "node.directory=same"]
        nodes = [cluster.start_peer(name, config, overrides=typed) for name in ("alpha", "beta")]
        for node in nodes:
            assert await ended(node) == 2  # There is no corpus.
    for node in nodes:
        record = read_record(node.directory)
        assert record is not None
        assert (record.name, record.pid) == (node.name, node.child.pid)


@pytest.mark.asyncio
async def test_killed_nodes_are_not_resumed_unless_nobody_else_is_left(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(RUN)
    async with LocalCluster(tmp_path) as cluster:
        nodes = [cluster.start_peer(name, config) for name in ("alpha", "beta", "gamma")]
        assert read_plan(tmp_path) == ["alpha", "beta", "gamma"]
        for node in nodes[:2]:
            os.kill(node.child.pid, signal.SIGKILL)
            assert await ended(node) == -signal.SIGKILL
        assert nodes[0].killed
    assert read_plan(tmp_path) == ["gamma"]
    assert not any(node.running for node in nodes)


@pytest.mark.asyncio
async def test_after_all_were_killed_all_are_resumed(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(RUN)
    async with LocalCluster(tmp_path) as cluster:
        for node in [cluster.start_peer(name, config) for name in ("alpha", "beta")]:
            os.kill(node.child.pid, signal.SIGKILL)
            assert await ended(node) == -signal.SIGKILL
    assert read_plan(tmp_path) == ["alpha", "beta"]


@pytest.mark.asyncio
async def test_a_node_that_does_not_go_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sims.cluster.local_cluster.STOP_TIMEOUT_S", 0.2)
    cluster = LocalCluster(tmp_path)
    node = cluster.start_peer("alpha", None, overrides=["run.peers_min=2"])
    async with asyncio.timeout(20):
        while not await cluster.statuses():
            pass  # Until it answers, it may not catch a SIGTERM yet.
    os.kill(node.child.pid, signal.SIGSTOP)
    began = time.monotonic()
    await cluster.stop()
    assert node.child.returncode == -signal.SIGKILL
    assert 0.2 <= time.monotonic() - began < 5
    await cluster.stop()  # Idempotent.


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodes": 3}', "null", "\0"])
def test_a_directory_of_somebody_else_has_no_plan(text: str, tmp_path: Path) -> None:
    assert read_plan(tmp_path) == []
    (tmp_path / PLAN).write_text(text)
    assert read_plan(tmp_path) == []
    (tmp_path / PLAN).write_text(json.dumps({"nodes": ["alpha"]}))
    assert read_plan(tmp_path) == ["alpha"]
