"""Links for tests: an owner that remembers everything, and what frames are made of.

Must NOT hold tests.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from peers.connections.control import Link
from peers.connections.frames import PREFIX
from protocols.messages.peer import Message, ReadLog, StateChunk
from protocols.types.ids import PeerId
from protocols.wire import codec

PEER = PeerId("beta.00000002")
BEATS = [ReadLog(index) for index in range(3)]


def state_chunk(size: int) -> StateChunk:
    return StateChunk(1, 2, 3, 0, 4, 0, max(size // 4, 1))


def frame(message: Message, payload: bytes = b"") -> bytes:
    head = codec.encode(message)
    return PREFIX.pack(len(head), len(payload)) + head + payload


class Recorder:
    """Owner of a link: remembers everything."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.why: list[str] = []
        self.stops_at: Message | None = None
        self.pauses_at: Message | None = None
        self.news = asyncio.Event()

    def opened(self, link: Link) -> None:
        pass

    def received(self, link: Link, message: Message) -> None:
        self.messages.append(message)
        self.news.set()
        if message == self.stops_at:
            link.close("enough")
        if message == self.pauses_at:
            link.pause()

    def closed(self, link: Link, why: str) -> None:
        self.why.append(why)
        self.news.set()

    async def until_closed(self) -> str:
        async with asyncio.timeout(10):
            while not self.why:
                self.news.clear()
                await self.news.wait()
        return self.why[0]

    async def until_messages(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.messages) < count:
                self.news.clear()
                await self.news.wait()


class NoNetwork(asyncio.Transport):
    """As much of a transport as receiving needs."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def feed(link: Link, data: bytes) -> None:
    """What asyncio does with bytes that fit."""
    room = link.get_buffer(-1)
    room[: len(data)] = data
    link.buffer_updated(len(data))


def sockets(window_bytes: int = 0) -> tuple[socket.socket, socket.socket]:
    """The two ends of a TCP connection; the second has no more than this window for us."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        raw = socket.socket()
        if window_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        raw.connect(server.getsockname())
        accepted, _ = server.accept()
    for one in (accepted, raw):
        one.setblocking(False)
    return accepted, raw


@asynccontextmanager
async def connected(*, introduced: bool = True) -> AsyncGenerator[tuple[Link, Recorder, "Raw"]]:
    """A link and, at the other end of a TCP connection, a bare socket."""
    loop = asyncio.get_running_loop()
    accepted, raw = sockets()
    owner = Recorder()
    link = Link(owner, accepted=True)
    await loop.create_connection(lambda: link, sock=accepted)
    if introduced:
        link.become(PEER)
    try:
        yield link, owner, Raw(raw)
    finally:
        raw.close()
        link.abort("the test is over")
        await owner.until_closed()


class Raw:
    """The other end."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw

    async def write(self, *pieces: bytes) -> None:
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().sock_sendall(self.raw, b"".join(pieces))

    async def read_all(self) -> bytes:
        """Everything until the end of the stream."""
        received = bytearray()
        async with asyncio.timeout(10):
            while piece := await asyncio.get_running_loop().sock_recv(self.raw, 1 << 20):
                received += piece
        return bytes(received)

    async def read(self, size: int) -> bytes:
        received = bytearray()
        async with asyncio.timeout(10):
            while len(received) < size:
                loop = asyncio.get_running_loop()
                received += await loop.sock_recv(self.raw, size - len(received))
        return bytes(received)
