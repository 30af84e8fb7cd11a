"""Connections with names that have several addresses, and with addresses that are none."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from peers.reaching import reach

NAME = "gpu1.example.org"
BUSY, FREE = "127.0.0.2", "127.0.0.1"


def has(*addresses: str, port: int) -> None:
    """What the name is resolved to from now on."""

    async def resolve(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        of = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        assert host == NAME
        return [(*of, (address, port)) for address in addresses]

    asyncio.get_running_loop().getaddrinfo = resolve  # type: ignore[method-assign,assignment]


@pytest.mark.asyncio
async def test_an_address_that_does_not_answer_leaves_time_for_the_next_one() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((FREE, 0)))
        port = server.getsockname()[1]
        stack.enter_context(socket.create_server((BUSY, port), backlog=0))
        for _ in range(4):  # Its queue is full: the kernel drops what else comes.
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex((BUSY, port))
        has(BUSY, FREE, port=port)
        async with asyncio.timeout(0.9):
            found = stack.enter_context(await reach(NAME, port, within_s=0.9))
        assert found.getpeername() == (FREE, port)


@pytest.mark.asyncio
async def test_who_is_not_there_is_passed_over_and_said_at_the_end() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((FREE, 0)))
        port = server.getsockname()[1]
        has(BUSY, FREE, port=port)
        stack.enter_context(await reach(NAME, port, within_s=10))
        has(BUSY, port=port)
        with pytest.raises(ConnectionRefusedError):
            await reach(NAME, port, within_s=10)
        has(port=port)
        with pytest.raises(OSError, match="has no address"):
            await reach(NAME, port, within_s=10)
        has(port=port)  # What is an address already is not looked up.
        stack.enter_context(await reach(FREE, port, within_s=10))
