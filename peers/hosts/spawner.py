"""Starts the ranks of a node on all of its hosts, as if they were on one.

Must NOT speak with ranks, nor know how a host starts its own.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from peers.hosts.rank_hosts import RankHosts
from peers.processes.supervisor import Exit, Spawner


class HostsSpawner:
    """Implements Spawner: the spawner of this host, and the further hosts."""

    def __init__(self, local: Spawner, hosts: RankHosts, *, address: str) -> None:
        """`address`: of this host, at which the ranks of all hosts find the first rank."""
        self._local, self._hosts, self._address = local, hosts, address
        self._exits = hosts.exits
        self._ended = deque[Exit]()
        """Ends that are not told yet."""
        self._local_ended = False
        """The program of this host has ended as a whole."""
        self._whole = 0
        """Number of hosts on which the whole program has ended in order."""

    @property
    def program(self) -> str:
        return self._local.program

    async def start(self, envs: Sequence[Mapping[str, str]]) -> None:
        """Wait for all hosts, then start the ranks. Raises SpawnError."""
        self._hosts.open()
        await self._hosts.all_here()
        self._ended.clear()
        self._local_ended, self._whole = False, 0
        made = environments(envs, counts=self._hosts.counts, address=self._address)
        local = self._hosts.counts[0]
        self._hosts.begin_attempt(int(envs[0]["LOWCOMM_ATTEMPT"]), made[local:])
        await self._local.start(made[:local])

    async def wait(self) -> Exit:
        """The next rank that has ended. The end of the whole program, in order, is that on the last
        host; else that on the first one, also if the host is lost."""
        while True:
            while not self._ended:
                await self._wait_any()
            ended = self._ended.popleft()
            if ended.rank is not None or ended.returncode or ended.final:
                return ended
            self._whole += 1
            if self._whole == len(self._hosts.counts):
                return ended

    async def _wait_any(self) -> None:
        waits = [asyncio.ensure_future(self._exits.get())]
        if not self._local_ended:
            waits.append(asyncio.ensure_future(self._local.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if len(waits) > 1 and waits[1].done():
                ended = waits[1].result()
                self._local_ended = ended.rank is None
                self._ended.append(ended)
            if waits[0].done():
                self._ended.append(waits[0].result())
        finally:
            for each in waits:
                each.cancel()

    async def last_line(self) -> str:
        return self._hosts.line or await self._local.last_line()

    async def stop(self) -> None:
        """End the ranks on all hosts."""
        await self._local.stop()
        await self._hosts.end_attempt()

    async def close(self) -> None:
        await self.stop()
        await self._local.close()
        await self._hosts.close()


def environments(
    envs: Sequence[Mapping[str, str]], *, counts: Sequence[int], address: str
) -> list[dict[str, str]]:
    """The variables of all ranks, made of those for ranks on one host. `counts`: number of ranks of
    each host, in order; `address`: of the first one. A launcher (torchrun) takes them too."""
    made: list[dict[str, str]] = []
    for host, count in enumerate(counts):
        for index in range(count):
            more = {
                "LOCAL_WORLD_SIZE": str(count),
                "LOCAL_RANK": str(index),
                "MASTER_ADDR": address,
                "PET_MASTER_ADDR": address,
                "PET_NPROC_PER_NODE": str(count),
                "PET_NNODES": str(len(counts)),
                "PET_NODE_RANK": str(host),
            }
            made.append({**envs[len(made)], **more})
    return made
