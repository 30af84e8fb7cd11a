"""A node on two hosts in one process: its daemon's side and the other one over real TLS on the
loopback, with ranks that are threads.

Must NOT hold tests.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from peers.connections.session import Tls
from peers.hosts.rank_hosts import RankHosts
from peers.hosts.sealed_link import SealedLink
from peers.ipc.msgpack_records import LinkError
from peers.ipc.parts import Runs
from peers.ipc.rank_client import RankClient
from peers.ipc.shared_memory import SlotsError
from peers.processes.supervisor import Exit
from peers.security.node_secret import make_secret, secret_tls
from peers.sockets.address import parse_address
from peers.sockets.listener import bind
from protocols.types import TensorSpec
from tests.peers.conftest import FRAGMENT_BYTES

ELEMENTS = FRAGMENT_BYTES[0] // 4
HALF = ELEMENTS // 2


@dataclass
class Seen:
    """A result as a rank has read it: its version, and the values of its bytes."""

    rank: int
    version: int
    values: set[int]


@dataclass
class ThreadSpawner:
    """Runs each rank in a thread of this process; their sockets end them. Implements Spawner."""

    seen: list[Seen] = field(default_factory=list[Seen])
    environments: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """Of all ranks that were started."""
    exits: asyncio.Queue[Exit] = field(default_factory=asyncio.Queue[Exit])
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    parts: Callable[[int], Sequence[Runs]] | None = None

    @property
    def program(self) -> str:
        return "the threads"

    async def start(self, envs: Sequence[Mapping[str, str]]) -> None:
        loop = asyncio.get_running_loop()
        for index, env in enumerate(envs):
            self.environments.append(dict(env))
            thread = threading.Thread(target=self._run, args=(index, env, loop), daemon=True)
            self.threads.append(thread)
            thread.start()

    async def wait(self) -> Exit:
        return await self.exits.get()

    async def last_line(self) -> str:
        return ""

    async def stop(self) -> None:
        for thread in self.threads:
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()
        self.threads = []
        while not self.exits.empty():
            self.exits.get_nowait()

    close = stop

    def _run(self, index: int, env: Mapping[str, str], loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(LinkError, SlotsError, SystemExit, OSError, RuntimeError):
            self._train(env)
            loop.call_soon_threadsafe(self.exits.put_nowait, Exit(index, 0))

    def _train(self, env: Mapping[str, str]) -> None:
        client = RankClient(
            env["LOWCOMM_SOCKET"],
            rank=int(env["RANK"]),
            world_size=int(env["WORLD_SIZE"]),
            attempt=int(env["LOWCOMM_ATTEMPT"]),
        )
        try:
            self._rounds(client)
        finally:
            client.close()

    def _rounds(self, client: RankClient) -> None:
        """A rank that contributes 16 times the number of the round, plus its own."""
        rank, finished, round_ = client.rank, False, 0
        parts = (self.parts or half)(rank)
        client.attach([TensorSpec(0, "w", (ELEMENTS,), 0)], elements=HALF, parts=parts)
        while not finished:
            round_ += 1
            start = 4 * HALF * rank
            values = bytes([16 * round_ + rank]) * 4 * HALF
            client.contribution(0)[start : start + len(values)] = values
            client.count_step(round_)
            client.contribute(0, steps=1, tokens=1)
            result = client.wait_result(0)
            read = set(client.result(result))
            client.check_untorn(result)
            self.seen.append(Seen(rank, result.version, read))
            finished = result.finish


def half(rank: int) -> Sequence[Runs]:
    """Each of two ranks writes one half, and reads all."""
    halves = (Runs(0, each * HALF, HALF, HALF, 1, writes=each == rank) for each in range(2))
    return tuple(halves)


@dataclass
class TwoHosts:
    """The daemon's side, and the way to it."""

    hosts: RankHosts
    tls: Tls
    address: tuple[str, int]
    notes: list[str]


@asynccontextmanager
async def two_hosts(directory: Path) -> AsyncGenerator[TwoHosts]:
    """The hosts of a node with rank 0 here and rank 1 on host 1."""
    make_secret(directory / "secret.pem")
    tls = secret_tls(directory / "secret.pem")
    listening, address = bind("127.0.0.1:0")
    notes: list[str] = []
    hosts = RankHosts(listening, tls, counts=(1,), ranks=2, note=notes.append)
    try:
        yield TwoHosts(hosts, tls, parse_address(address, key="test"), notes)
    finally:
        await hosts.close()


@asynccontextmanager
async def dialled(address: tuple[str, int], tls: Tls) -> AsyncGenerator[SealedLink]:
    """A connection to the daemon's side, as a host makes it."""
    reader, writer = await asyncio.open_connection(*address, ssl=tls.dialling)
    link = SealedLink(reader, writer)
    writing = asyncio.create_task(link.write_frames())
    try:
        yield link
    finally:
        link.give_up("the test is over")
        writing.cancel()
