"""A node with its second rank on another host: rounds, a lost host, and its return."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peers.hosts import host_ranks
from peers.hosts.host_ranks import run_ranks
from peers.hosts.spawner import HostsSpawner
from peers.ipc.parts import Runs
from peers.ipc.rank_client import RankClient
from peers.processes.process_handles import ProcessHandle
from peers.ranks.events import GroupLost, GroupReady, RankContribution, RanksFinished
from protocols.types import LowcommError
from tests.peers.conftest import Owner, run_owner
from tests.peers.hosts_room import HALF, Seen, ThreadSpawner, TwoHosts, two_hosts


class Node:
    """A node on two hosts, and what a test sees of it."""

    def __init__(self, two: TwoHosts, owner: Owner, local: ThreadSpawner) -> None:
        self.two, self.owner, self.local = two, owner, local
        self.remote = ThreadSpawner()
        self.said: list[str] = []

    def start_host(self, *, number: int = 1) -> asyncio.Task[None]:
        return asyncio.create_task(
            run_ranks(
                self.two.address,
                host=number,
                tls=self.two.tls,
                spawner=self.remote,
                say=self.said.append,
            )
        )

    async def contributed(self, round_: int) -> None:
        """Both ranks have contributed, and their parts lie in the daemon's memory."""
        event = await self.owner.until(RankContribution)
        assert (event.fragment, event.steps) == (0, 1)
        slots = self.owner.group.slots
        assert slots is not None
        wanted = b"".join(bytes([16 * round_ + rank]) * 4 * HALF for rank in range(2))
        assert bytes(slots.contribution(0)) == wanted

    async def finish(self) -> None:
        self.owner.post(finish=True)
        await self.owner.until(RanksFinished)
        await self.owner.ended()


def _spared(_: object) -> None:
    """In place of the end of a process."""


@pytest.fixture(autouse=True)
def _threads_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of these tests are threads of this process, which would end with them."""
    monkeypatch.setattr(ProcessHandle, "kill", _spared)
    monkeypatch.setattr(RankClient, "_exit_without_daemon", _spared)
    monkeypatch.setattr(host_ranks, "AGAIN_S", 0.05)


@asynccontextmanager
async def node_on(tmp_path: Path) -> AsyncGenerator[Node]:
    local = ThreadSpawner()
    async with two_hosts(tmp_path) as two:
        spawner = HostsSpawner(local, two.hosts, address="10.0.0.1")
        async with run_owner(spawner=spawner, elsewhere=two.hosts.lead_here) as owner:
            owner.configure()
            yield Node(two, owner, local)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.asyncio
async def test_ranks_on_two_hosts_are_one_node(tmp_path: Path) -> None:
    async with node_on(tmp_path) as node:
        host = node.start_host()
        assert await node.owner.until(GroupReady) == GroupReady(0)
        await node.contributed(1)
        node.owner.post()
        await node.contributed(2)
        node.owner.post()
        await node.contributed(3)
        await node.finish()
        await asyncio.wait_for(host, 20)
        assert node.remote.seen == [Seen(1, version, {version}) for version in (1, 2, 3)]
        assert node.local.seen == [Seen(0, version, {version}) for version in (1, 2, 3)]
        assert node.said[-1] == "the node has ended"
        assert node.two.notes == [
            "waiting for host 1 of this node: `lowcomm ranks`",
            "host 1 is connected: 1 ranks from rank 1 on",
        ]
        (here,), (there,) = node.local.environments, node.remote.environments
        assert (here["RANK"], there["RANK"]) == ("0", "1")
        assert there["LOCAL_RANK"] == "0"
        assert there["MASTER_ADDR"] == here["MASTER_ADDR"] == "10.0.0.1"
        assert there["MASTER_PORT"] == here["MASTER_PORT"]
        assert (here["PET_NODE_RANK"], there["PET_NODE_RANK"]) == ("0", "1")
        assert there["LOWCOMM_SOCKET"] != here["LOWCOMM_SOCKET"]


@pytest.mark.asyncio
async def test_ranks_of_a_lost_host_begin_again_when_it_is_back(tmp_path: Path) -> None:
    async with node_on(tmp_path) as node:
        host = node.start_host()
        await node.contributed(1)
        node.owner.post(counted=True)
        await node.contributed(2)
        await ended(host)
        lost = await node.owner.until(GroupLost)
        assert lost.why == "host 1 of this node is lost: it closed the connection"
        host = node.start_host()
        assert await node.owner.until(GroupReady) == GroupReady(1)
        assert node.two.notes[-1] == "host 1 is connected: 1 ranks from rank 1 on"
        await node.contributed(1)
        await node.finish()
        await asyncio.wait_for(host, 20)
        assert node.remote.seen[-1] == Seen(1, 2, {2})


@pytest.mark.asyncio
async def test_a_host_that_the_node_does_not_have_is_refused(tmp_path: Path) -> None:
    async with node_on(tmp_path) as node:
        with pytest.raises(LowcommError, match="has 1 hosts: there is no 2"):
            await asyncio.wait_for(node.start_host(number=2), 20)


@pytest.mark.asyncio
async def test_a_program_that_does_not_say_what_it_writes_is_named(tmp_path: Path) -> None:
    def silent(rank: int) -> Sequence[Runs]:
        return ()

    async with node_on(tmp_path) as node:
        node.remote.parts = silent
        host = node.start_host()
        lost = await node.owner.until(GroupLost)
        assert lost.why.startswith("rank 1: its program does not say what it writes")
        await ended(host)
