"""Bulk connections for tests: in the clear and sealed, with a bare socket or each other at the end.

Must NOT hold tests.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial

from peers.connections.bulk import Bulk, Seals
from peers.connections.encryption import Seal
from peers.connections.frames import Frame, PlainWriter
from protocols.messages.peer import Chunk, Padding
from protocols.types.ids import PeerId
from tests.peers.chunk_room import PEER, Taker, state_chunk, written
from tests.peers.link_room import Raw, sockets


def read_no_more(bulk: Bulk) -> None:
    """Further bytes wait at the peer."""
    asyncio.get_running_loop().remove_reader(bulk.connection)


class Owner(Taker):
    """Of the connections of one test."""

    def __init__(self) -> None:
        super().__init__()
        self.news = asyncio.Event()
        self.sent_bytes = 0
        """Payload, as we were told ..."""
        self.came: list[tuple[int, bool]] = []
        """... and what came: (how many bytes, had it a place)."""
        self.worked: Callable[[Chunk], None] = lambda chunk: None
        """With each chunk that is here."""

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None:
        assert peer == PEER
        self.news.set()
        if isinstance(chunk, Padding):
            self.refuses += 1
        return self.began(chunk, size)

    def chunk_received(self, peer: PeerId, chunk: Chunk) -> None:
        self.ended(chunk)
        self.news.set()
        self.worked(chunk)

    def payload_sent(self, peer: PeerId, chunk: Chunk, size: int) -> None:
        self.sent_bytes += size

    def payload_received(self, peer: PeerId, chunk: Chunk, size: int, *, kept: bool) -> None:
        self.came.append((size, kept))
        self.news.set()

    def bulk_closed(self, bulk: Bulk, why: str) -> None:
        assert not bulk.is_open
        self.why.append(why)
        self.news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def connected(*, window_bytes: int = 0) -> AsyncGenerator[tuple[Bulk, Owner, Raw]]:
    """One in the clear, and a bare socket at its other end."""
    accepted, raw = sockets(window_bytes)
    owner = Owner()
    bulk = Bulk(owner, PEER, accepted, closed=owner.bulk_closed, seals=None)
    bulk.start()
    try:
        yield bulk, owner, Raw(raw)
    finally:
        raw.close()
        bulk.close("the test is over")
        await owner.until(lambda: owner.why)
        assert len(owner.why) == 1


@asynccontextmanager
async def pair(*, sealed: bool) -> AsyncGenerator[tuple[Bulk, Bulk, Owner]]:
    """Two that are connected; the second one's owner."""
    owners = Owner(), Owner()
    keys = b"a" * 32, b"b" * 32
    bulks: list[Bulk] = []
    for owner, connection, ours, theirs in zip(owners, sockets(), keys, keys[::-1], strict=True):
        seals = Seals(Seal(ours), Seal(theirs)) if sealed else None
        bulks.append(Bulk(owner, PEER, connection, closed=owner.bulk_closed, seals=seals))
        bulks[-1].start()
    one, other = bulks
    try:
        yield one, other, owners[1]
    finally:
        for bulk, owner in zip(bulks, owners, strict=True):
            bulk.close("the test is over")
            await owner.until(lambda owner=owner: owner.why)


def frames(*payloads: bytes) -> list[Frame]:
    return [(state_chunk(len(p)), p) for p in payloads]


def stream(*payloads: bytes) -> bytes:
    return b"".join(written(PlainWriter(), frames(*payloads)))


def source(these: Iterable[Frame]) -> Callable[[], Frame | None]:
    """What a connection is fed from: these, and then nothing for now."""
    return partial(next, iter(these), None)


def endless(payload: bytes, made: list[int], news: asyncio.Event | None = None) -> Iterator[Frame]:
    while True:
        made.append(1)
        if news is not None:
            news.set()
        yield state_chunk(len(payload)), payload
