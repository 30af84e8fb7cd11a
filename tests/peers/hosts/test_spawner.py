"""The ranks of several hosts as one spawner starts them, and their ends."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from peers.hosts.messages import VERSION, HostHello, RanksExited
from peers.hosts.sealed_link import SealedLink
from peers.hosts.spawner import HostsSpawner, environments
from peers.ipc.daemon_socket import Inbox
from peers.processes.supervisor import Exit, SpawnError, rank_environments
from tests.peers.hosts_room import TwoHosts, dialled, two_hosts

ENVS = rank_environments(4, ranks=2, port=20001, socket_path="/socket")
WHOLE = RanksExited(all_ranks=True, index=0, code=0, signal=0, line="")


class Ends:
    """A spawner of ranks that end as a test says. Implements Spawner."""

    program = "the program"

    def __init__(self) -> None:
        self.started: list[Sequence[Mapping[str, str]]] = []
        self.ends: asyncio.Queue[Exit] = asyncio.Queue()

    async def start(self, envs: Sequence[Mapping[str, str]]) -> None:
        self.started.append(envs)

    async def wait(self) -> Exit:
        return await self.ends.get()

    async def last_line(self) -> str:
        return ""

    async def stop(self) -> None: ...
    async def close(self) -> None: ...


def test_a_launcher_of_several_hosts_takes_the_variables() -> None:
    envs = rank_environments(0, ranks=4, port=20001, socket_path="/socket")
    made = environments(envs, counts=(1, 2, 1), address="10.0.0.1")
    keys = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
    assert [tuple(env[key] for key in keys) for env in made] == [
        ("0", "0", "1", "0", "1"),
        ("1", "0", "2", "1", "2"),
        ("2", "1", "2", "1", "2"),
        ("3", "0", "1", "2", "1"),
    ]
    for env in made:
        assert env["WORLD_SIZE"] == "4"
        assert env["PET_NNODES"] == "3"
        assert env["MASTER_ADDR"] == env["PET_MASTER_ADDR"] == "10.0.0.1"
        assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == "20001"


async def begun(two: TwoHosts, host: SealedLink, local: Ends) -> HostsSpawner:
    """The spawner, which has begun an attempt on both hosts."""
    inbox: Inbox = asyncio.Queue()
    two.hosts.lead_here(inbox, lambda: None)
    spawner = HostsSpawner(local, two.hosts, address="10.0.0.1")
    host.send(HostHello(host=1, version=VERSION))
    async with asyncio.timeout(20):
        await spawner.start(ENVS)
    return spawner


async def next_end(spawner: HostsSpawner) -> Exit:
    return await asyncio.wait_for(spawner.wait(), 20)


@pytest.mark.asyncio
async def test_a_program_has_ended_in_order_when_it_has_on_all_hosts(tmp_path: Path) -> None:
    local = Ends()
    async with two_hosts(tmp_path) as two:
        two.hosts.open()
        async with dialled(two.address, two.tls) as host:
            spawner = await begun(two, host, local)
            assert [env["RANK"] for env in local.started[0]] == ["0"]
            local.ends.put_nowait(Exit(None, 0))
            waiting = asyncio.create_task(next_end(spawner))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            host.send(WHOLE)
            assert await waiting == Exit(None, 0)


@pytest.mark.asyncio
async def test_the_end_of_a_rank_on_another_host_has_its_number(tmp_path: Path) -> None:
    local = Ends()
    async with two_hosts(tmp_path) as two:
        two.hosts.open()
        async with dialled(two.address, two.tls) as host:
            spawner = await begun(two, host, local)
            host.send(RanksExited(all_ranks=False, index=0, code=0, signal=9, line=""))
            assert await next_end(spawner) == Exit(1, -9)
            host.send(RanksExited(all_ranks=True, index=0, code=1, signal=0, line="KeyError: 3"))
            assert await next_end(spawner) == Exit(None, 1)
            assert await spawner.last_line() == "on host 1: KeyError: 3"
            local.ends.put_nowait(Exit(None, 3))
            assert await next_end(spawner) == Exit(None, 3)


@pytest.mark.asyncio
async def test_a_lost_host_ends_the_attempt_and_none_begins_without_it(tmp_path: Path) -> None:
    local = Ends()
    async with two_hosts(tmp_path) as two:
        two.hosts.open()
        async with dialled(two.address, two.tls) as host:
            spawner = await begun(two, host, local)
        lost = await next_end(spawner)
        assert str(lost) == "host 1 of this node is lost: it closed the connection"
        with pytest.raises(SpawnError, match="host 1 of this node is lost"):
            two.hosts.begin_attempt(5, ENVS[1:])
        await spawner.close()
