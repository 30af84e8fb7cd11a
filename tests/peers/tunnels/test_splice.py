"""A splice between sockets of one machine: what goes in comes out, and nothing piles up."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from peers.tunnels.splice import BUFFER_BYTES, BytePump

DATA = bytes(range(251)) * 100_000


class Scene:
    """Two that are joined, and who joins them."""

    def __init__(self) -> None:
        self.one, near = socket.socketpair()
        self.other, far = socket.socketpair()
        for each in (self.one, near, far, self.other):
            each.setblocking(False)
        self.moved: Counter[bool] = Counter()
        self.over = asyncio.Event()
        self.splice = BytePump(near, far, moved=self._count, ended=lambda _: self.over.set())
        self.splice.start()

    def _count(self, forth: bool, count: int) -> None:
        self.moved[forth] += count


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene]:
    made = Scene()
    try:
        async with asyncio.timeout(20):
            yield made
    finally:
        made.splice.close()
        made.one.close()
        made.other.close()


async def received(connection: socket.socket, size: int) -> bytes:
    found, loop = bytearray(), asyncio.get_running_loop()
    while len(found) < size and (piece := await loop.sock_recv(connection, 1 << 16)):
        found += piece
    return bytes(found)


@pytest.mark.asyncio
async def test_both_ways_exactly() -> None:
    async with scene() as made:
        loop = asyncio.get_running_loop()
        sends = [
            loop.create_task(loop.sock_sendall(made.one, DATA)),
            loop.create_task(loop.sock_sendall(made.other, DATA[::-1])),
        ]
        forth, back = await asyncio.gather(
            received(made.other, len(DATA)), received(made.one, len(DATA))
        )
        await asyncio.gather(*sends)
        assert (forth, back) == (DATA, DATA[::-1])
        assert made.moved == {True: len(DATA), False: len(DATA)}


@pytest.mark.asyncio
async def test_who_takes_nothing_stops_the_other_one_and_nothing_is_lost() -> None:
    async with scene() as made:
        loop, sent, still = asyncio.get_running_loop(), 0, 0
        while still < 20:  # Until nothing goes in for a while.
            try:
                sent += made.one.send(DATA[sent:])
                still = 0
            except BlockingIOError:
                still += 1
            await asyncio.sleep(0.005)
        assert sent < len(DATA) / 4
        assert sent - made.moved[True] <= 2 * BUFFER_BYTES, "what waits is in the kernel, and here"
        # The other way nobody is stopped.
        await loop.sock_sendall(made.other, b"back")
        assert await received(made.one, 4) == b"back"
        assert await received(made.other, sent) == DATA[:sent]


@pytest.mark.asyncio
@pytest.mark.parametrize("reset", [False, True])
async def test_the_end_of_one_side_is_the_end_of_both(reset: bool) -> None:
    async with scene() as made:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(made.one, b"the last word")
        if reset:
            await received(made.other, 13)
            await loop.sock_sendall(made.other, b"never read")  # Then an end is a reset.
            await asyncio.sleep(0.05)
        made.one.close()
        await made.over.wait()
        assert not made.splice.is_open
        if not reset:
            assert await received(made.other, 100) == b"the last word"
