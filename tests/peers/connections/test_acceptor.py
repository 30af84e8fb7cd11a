"""Who comes in by one port, told apart by the first bytes, a byte at a time if need be."""

import asyncio
import resource
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from peers.connections import acceptor
from peers.connections.acceptor import MAGIC, STRANGERS_MAX, TUNNEL, Acceptor
from peers.connections.control import Link
from peers.sockets.listener import bind
from protocols.messages.peer import Leave, Message
from protocols.types.limits import TICKET_BYTES
from tests.peers.link_room import frame

TICKET = bytes(range(TICKET_BYTES))
LEAVE = Leave("bye")


class Host:
    """Remembers who came; every connection stays a stranger."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.messages: list[Message] = []
        self.came: list[tuple[socket.socket, bytes]] = []
        self.ends: list[tuple[socket.socket, bytes]] = []
        self.acceptor = Acceptor(self)
        bound, address = bind("127.0.0.1:0")
        self.port = int(address.rpartition(":")[2])
        self.acceptor.open(bound, None)

    def bulk_came(self, connection: socket.socket, ticket: bytes) -> None:
        self.came.append((connection, ticket))

    def tunnel_end_came(self, connection: socket.socket, ticket: bytes) -> None:
        self.ends.append((connection, ticket))

    def opened(self, link: Link) -> None:
        self.links.append(link)

    def received(self, link: Link, message: Message) -> None:
        self.messages.append(message)

    def closed(self, link: Link, why: str) -> None:
        self.links.remove(link)
        self.acceptor.known(link)

    def dial(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setblocking(False)
        return made


@asynccontextmanager
async def host() -> AsyncGenerator[Host]:
    made = Host()
    try:
        yield made
    finally:
        await made.acceptor.close()
        await made.acceptor.close()
        for connection, _ in (*made.came, *made.ends):
            connection.close()
        await until(lambda: not made.links)
        assert not made.acceptor


async def until(condition: Callable[[], object], *, within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  The kernel tells nobody here.
            await asyncio.sleep(0.001)


async def hung_up(raw: socket.socket, *, within_s: float = 10) -> bytes:
    """What came until then."""
    received = b""
    with raw:
        async with asyncio.timeout(within_s):
            try:
                while piece := await asyncio.get_running_loop().sock_recv(raw, 1 << 16):
                    received += piece
            except ConnectionResetError:
                pass
    return received


@pytest.mark.asyncio
async def test_a_bulk_connection_is_told_by_its_magic_and_nothing_behind_its_ticket_is_read() -> (
    None
):
    async with host() as one:
        with one.dial() as raw:
            raw.send(MAGIC + TICKET + b"the first frame")
            await until(lambda: one.came)
            ((connection, ticket),) = one.came
            assert ticket == TICKET
            assert connection.recv(100) == b"the first frame"
            assert not one.acceptor
            assert one.links == []


@pytest.mark.asyncio
async def test_an_end_of_a_tunnel_is_told_from_a_bulk_connection() -> None:
    async with host() as one:
        with one.dial() as raw:
            raw.send(TUNNEL + TICKET + MAGIC)
            await until(lambda: one.ends)
            ((connection, ticket),) = one.ends
            assert (ticket, one.came) == (TICKET, [])
            assert connection.recv(100) == MAGIC


@pytest.mark.asyncio
async def test_who_comes_by_another_way_is_met_like_who_was_accepted() -> None:
    """Nobody can dial this one; its own connection leads to somebody who wants it."""
    async with host() as one:
        raw, ours = socket.socketpair()
        with raw:
            ours.setblocking(False)
            one.acceptor.meet(ours)
            raw.send(MAGIC + TICKET)
            await until(lambda: one.came)
            assert not one.acceptor


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["bulk", "control"])
async def test_first_bytes_may_come_one_at_a_time(kind: str) -> None:
    first = MAGIC + TICKET if kind == "bulk" else frame(LEAVE)
    async with host() as one:
        with one.dial() as raw:
            for byte in first:
                raw.send(bytes([byte]))
                await asyncio.sleep(0.002)
            await until(lambda: one.came or one.messages)
            assert [ticket for _, ticket in one.came] == ([TICKET] if kind == "bulk" else [])
            assert one.messages == ([] if kind == "bulk" else [LEAVE])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "says", [b"", MAGIC[:2], MAGIC + TICKET[:-1], b"\x16"], ids=["nothing", "m", "t", "tls"]
)
async def test_who_ends_before_it_is_known_is_forgotten(says: bytes) -> None:
    async with host() as one:
        with one.dial() as raw:
            raw.send(says)
            await until(lambda: one.acceptor)
        await until(lambda: not one.acceptor)
        assert one.came == []


@pytest.mark.asyncio
@pytest.mark.parametrize("says", [b"", MAGIC[:2], MAGIC + TICKET[:-1]], ids=["nothing", "m", "t"])
async def test_who_does_not_come_to_the_point_costs_no_cpu_and_is_cut_off(
    says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "HELLO_TIMEOUT_S", 0.4)
    async with host() as one:
        raw = one.dial()
        raw.send(says)
        looks = 0
        before = one.acceptor._look

        def counted(*of: acceptor.UnknownConnection | socket.socket) -> None:
            nonlocal looks
            looks += 1
            before(*of)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(one.acceptor, "_look", counted)
        assert await hung_up(raw) == b""
        assert looks <= 2, "it was waited for, and not asked again and again"
        assert one.came == []


@pytest.mark.asyncio
async def test_the_oldest_stranger_makes_room_whatever_it_is() -> None:
    async with host() as one:
        half_bulk = one.dial()
        half_bulk.send(MAGIC)
        await until(lambda: len(one.acceptor) == 1)
        link = one.dial()
        link.send(frame(LEAVE))
        await until(lambda: one.messages)
        others = [one.dial() for _ in range(STRANGERS_MAX)]
        assert await hung_up(half_bulk) == b""
        assert await hung_up(link) == b""
        assert len(one.acceptor) <= STRANGERS_MAX
        for other in others:
            other.close()


@pytest.mark.asyncio
async def test_a_process_without_descriptors_accepts_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "FULL_S", 0.1)
    async with host() as one:
        raws = [one.dial() for _ in range(2)]
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = socket.socket()
        next_free = lowest.fileno()
        lowest.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, before[1]))
        try:
            await asyncio.sleep(0.05)
            assert not one.acceptor
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await until(lambda: len(one.acceptor) == 2)
        for raw in raws:
            raw.close()


@pytest.mark.asyncio
async def test_closing_ends_a_link_that_is_about_to_be_one() -> None:
    """Its making is cancelled: uvloop tells of it all the same, and then never of its end."""
    for turns in range(6):
        async with host() as one:
            raw = one.dial()
            raw.send(frame(LEAVE))
            await until(lambda: one.acceptor)
            for _ in range(turns):
                await asyncio.sleep(0)
            await one.acceptor.close()
            assert await hung_up(raw) == b""


@pytest.mark.asyncio
async def test_closing_ends_who_is_no_link_yet() -> None:
    async with host() as one:
        raws = [one.dial() for _ in range(3)]
        raws[0].send(MAGIC)
        raws[1].send(frame(LEAVE))
        await until(lambda: len(one.acceptor) == 3)
        await one.acceptor.close()
        for raw in raws:
            assert await hung_up(raw) == b""
        with pytest.raises(ConnectionRefusedError):
            one.dial()
